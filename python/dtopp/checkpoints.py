"""Opens a checkpoint of `dtopp train` in PyTorch."""

import os
import pathlib
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

from dtopp.program import PROGRAM, library_path

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["load"]

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2] / "build/release/bin/dtopp"


def load(checkpoint: str | os.PathLike[str], **options: Any) -> "PreTrainedModel":
    """Returns a language model's checkpoint as a module of transformers, with `generate`.

    The program converts the checkpoint, as `dtopp convert to-hf` does, to a temporary folder that is removed afterwards. The experts
    run on dtopp's operators. The model's `tokenizer` attribute is the checkpoint's tokenizer, or None if it has none.

    Args:
        checkpoint: a checkpoint, or a run's folder, whose newest checkpoint is used.
        options: of `from_pretrained`, such as dtype=torch.bfloat16 or device_map="cuda".

    Raises:
        ValueError: the program refuses the checkpoint; its message states why.
        FileNotFoundError: the program dtopp is missing.
        ImportError: transformers is missing.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        import dtopp.huggingface  # registers the experts' implementation
    except ModuleNotFoundError as error:
        raise ImportError(f"dtopp.load: {error}; pip install transformers") from None
    with tempfile.TemporaryDirectory(prefix="dtopp-") as folder:
        output = pathlib.Path(folder) / "model"
        _run("convert", "to-hf", os.fspath(checkpoint), str(output))
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(output, trust_remote_code=True,
                                                                      **{"experts_implementation": "dtopp"} | options)
        has_tokenizer = (output / "tokenizer.json").is_file()
        setattr(model, "tokenizer", AutoTokenizer.from_pretrained(output, trust_remote_code=True) if has_tokenizer else None)
    return model.eval()


def _run(*arguments: str) -> None:
    named = os.environ.get("DTOPP_BINARY")
    program = next((path for path in (pathlib.Path(named) if named else None, PROGRAM, _CHECKOUT) if path and path.is_file()), None)
    if program is None:
        raise FileNotFoundError(f"dtopp.load: the program {named or PROGRAM} is missing: install the wheel, or run make build")
    environment = os.environ | ({"LD_LIBRARY_PATH": library_path()} if program == PROGRAM else {})
    done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stderr.strip() or f"{program} ended with status {done.returncode}")
