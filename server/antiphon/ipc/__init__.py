"""The interface between front ends and engines: rings in memory, declared messages, wake-ups.

A front end holds one :class:`antiphon.ipc.engine_client.EnginePort` for each model. In one process::

    LocalFrontEnd({name: engine}, loop).client.engines   # antiphon.engine.front_ends; engines are started

Across processes (Linux), one SOCK_SEQPACKET pair for each front end::

    engine = Engine(..., pools=N, wake=EventWake())      # engine process: a pool of leases each
    server = FrontEndServer({name: engine}, loop)        # antiphon.engine.front_ends; on one event loop
    server.add(pool, control_socket)                     # one end of the pair
    server.take_back(pool)                               # after its process was reaped; add() may follow
    ports = await connect(control_socket)                # front end: name -> EnginePort
    ports[name].on_change(callback)                      # its health has changed, or its process ended
"""
