"""Which torch the compiled operators and the program fit."""

# One minor version, as torch's own binary interface does: this one, which scripts/setup.sh installs.
BUILT_FOR = "2.11"


def fits(version: str) -> bool:
    """Whether a torch of this version, "2.11.0+cu130", is such a one."""
    return version.split(".")[:2] == BUILT_FOR.split(".")
