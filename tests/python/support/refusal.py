"""Checks how a command ends when it refuses its input."""


def assert_refused(done, status, names=(), begins="dtopp: error: ", alone=True):
    """Expects this exit status and, on standard error, one line that begins with `begins`.

    A line that names the CUDA device may precede it. The line names each of `names`: files, keys, options or their values. Its wording is tested where it is made.
    With alone=False, lines about progress or about ranks may stand beside it.
    """
    text = done.stderr if isinstance(done.stderr, str) else done.stderr.decode()
    assert done.returncode == status, (done.returncode, text)
    lines = [line for line in text.splitlines() if not line.startswith("dtopp: computing on cuda")]
    if not alone:
        lines = [line for line in lines if "error:" in line]
    assert len(lines) == 1 and lines[0].startswith(begins), text
    for name in names if isinstance(names, (list, tuple)) else [names]:
        assert str(name) in lines[0], lines[0]
