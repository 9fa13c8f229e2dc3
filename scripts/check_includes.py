"""Lower rooms never include higher ones, and one name is one type (a second one breaks the one definition rule where no
compiler looks). Exits 1 and names each include and type that does not, and any source file too long."""

import pathlib
import re
import sys

ROOMS = ["base", "launch", "config", "ops", "distributed", "moe", "data", "models", "plan", "tasks", "checkpoint", "metrics", "train", "eval",
         "study", "report", "convert"]
# A room may include itself and rooms before it; data knows nothing of tensors, base and ops nothing of anyone, and what
# reads runs is linked without torch.
TENSORS = {"ops", "distributed", "moe", "models", "plan", "train", "eval"}
FORBIDDEN = {"data": {"ops", "moe", "models"}, "ops": {"base"}, "study": TENSORS, "report": TENSORS,
             "convert": TENSORS - {"models"}}
LINES = 300



def types_of(text):
    """Types defined in a namespace that has a name: clang-format begins them, and ends unnamed namespaces, without indent."""
    named = re.sub(r"^namespace \{\n.*?^\}  // namespace$", "", text, flags=re.M | re.S)
    return re.findall(r"^(?:struct|class|union|enum class|enum) (\w+)(?: final)?(?: :[^;{]*)? \{", named, re.M)


root = pathlib.Path(__file__).resolve().parent.parent
problems, types = [], {}
for path in sorted([*(p for kind in ("h", "cpp", "cu") for p in root.glob(f"dtopp/**/*.{kind}")), *root.glob("cli/*")]):
    name = path.relative_to(root)
    room = name.parts[1] if name.parts[0] == "dtopp" else "cli"
    text = path.read_text()
    if text.count("\n") > LINES and "// Longer than" not in text:
        problems.append(f"{name}: {text.count(chr(10))} lines, more than {LINES}")
    for scope in re.findall(r"^namespace ([\w:]+) \{", text, re.M)[:1]:
        for type_name in types_of(text):
            first = types.setdefault((scope, type_name), name)
            if first != name:
                problems.append(f"{name}: {scope}::{type_name} is defined in {first} too")
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'#include "(dtopp/(\w+)/|cli/)', line)
        if not match:
            continue
        included = match.group(2) or "cli"
        if room == "cli":
            continue
        if included == "cli" or included not in ROOMS or ROOMS.index(included) > ROOMS.index(room) \
                or included in FORBIDDEN.get(room, ()):
            problems.append(f"{name}:{number}: {room} must not include {included}")
print("\n".join(problems) or "include direction and type names: fine")
sys.exit(1 if problems else 0)
