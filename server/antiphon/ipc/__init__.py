"""The seam between front ends and an engine: rows in memory, control, wake-ups; numpy and no framework.

A front end holds one :class:`antiphon.ipc.port.EnginePort` a model. In one process it is
``LocalEngine(engine, Doorbell(loop))`` (:mod:`antiphon.ipc.local`) around a started ``Engine``.

Across processes (Linux), one SOCK_SEQPACKET pair a front end::

    engine = Engine(..., pools=N, wake=EventWake())    # engine process: N front ends, each its pool of leases
    fleet = Fleet({name: engine}); fleet.start()       # antiphon.engine.fleet; a thread for all front ends
    fleet.add(pool, control_socket)                    # one end of the pair; any thread
    fleet.take_back(pool)                              # after its process was reaped; add() may follow
    ports = await connect(control_socket)              # front end, antiphon.ipc.remote: name -> RemoteEngine
    ports[name].on_lost(callback)                      # the engine's process is gone, its calls have ended

``fleet.on_dropped`` is called with the pool of a front end that has gone, or takes no messages.
"""
