"""The names of the models that come with the package: all that a configuration needs of the catalog."""

from typing import Final

BUILTIN: Final = ("tiny", "tiny-stt", "tiny-tts", "echo")
"""Each is a folder of ``antiphon/assets``."""

DEFAULT_MODEL: Final = "tiny"
