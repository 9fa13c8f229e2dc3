"""The torch version that the compiled operators and the program need."""

# A minor version, like torch's own binary interface; scripts/setup.sh installs this one.
BUILT_FOR = "2.11"


def fits(version: str) -> bool:
    """Whether a torch version, such as "2.11.0+cu130", fits."""
    return version.split(".")[:2] == BUILT_FOR.split(".")
