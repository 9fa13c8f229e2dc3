"""The page of `make gpu-report`: static HTML from its JSON, in the style of `dtopp report`."""

import html
import pathlib

STYLE = pathlib.Path(__file__).resolve().parent.parent / "dtopp/report/page/report.css"
OWN_STYLE = """
#report h2 { margin-top: 2.2rem; }
.table { margin-top: .8rem; }
tbody th { min-width: 15em; }
.share { display: inline-block; width: 110px; height: 9px; margin-right: .6rem; background: var(--grid); border-radius: 2px; overflow: hidden; }
.share i { display: block; height: 100%; background: var(--run-0); }
.bad { color: var(--run-1); font-weight: 600; }
pre { white-space: pre-wrap; font-size: .78rem; color: var(--muted); margin: .3rem 0 0; }
"""
LAYERS = {"dense": "dense FFN of equal FLOPs", "grouped_mm": "torch's grouped_mm", "scattered": "gather, GEMM, scatter (as ScatterMoE)"}


def number(value, digits=3):
    """`digits` significant digits, and all digits before the point."""
    if value is None:
        return "–"
    if not isinstance(value, (int, float)):
        return html.escape(str(value))
    return f"{value:,.0f}" if value == 0 or abs(value) >= 10**(digits - 1) or float(value).is_integer() else f"{value:.{digits}g}"


def percent(value):
    return "–" if value is None else f"{100 * value:.1f} %"


def share(value):
    """A bar that is full at 1."""
    return "–" if value is None else f'<span class="share"><i style="width:{100 * min(value, 1):.1f}%"></i></span>{percent(value)}'


def table(caption, header, rows, text=0):
    """The first column has names; the last `text` columns have text, the others numbers. The cells are HTML."""
    kinds = ["", *[" class=number"] * (len(header) - 1 - text), *[""] * text]
    head = "".join(f"<th{kind}>{name}</th>" for kind, name in zip(kinds, header))
    body = "".join(f"<tr><th>{row[0]}</th>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds[1:], row[1:])) + "</tr>\n" for row in rows)
    caption = f"<caption>{caption}</caption>" if caption else ""
    return f'<div class="table"><table>{caption}<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>\n' if rows else ""


def layer_name(line):
    name = LAYERS.get(line["layer"], line["layer"])
    if line["products"]:
        name += f' <span class="unit">{html.escape(line["products"].replace(",", ", "))}</span>'
    return name + (f' <span class="unit">{line["experts"]} experts per token</span>' if line["experts"] else "")


def layers(lines):
    rows = [line for line in lines if line["case"] == "expert_layer"]
    rate = next((line for line in lines if line["case"] == "matrix_rate"), None)
    if not rows or not rate:
        return ""
    best = max((line for line in rows if line["layer"] == "dtopp" and line["experts"] == "varying"), key=lambda line: line["tflops"])
    speeds = [f"{best['tflops'] / line['tflops']:.2f} times the speed of {LAYERS[line['layer']]}" for line in rows if line["layer"] in LAYERS]
    parts = next((line for line in lines if line["case"] == "expert_layer_kernels" and line["products"] == best["products"]), None)
    return (f'<p class="answer">dtopp\'s layer of experts: {number(best["tflops"])} TFLOP/s forward and backward, {percent(best["share_of_rate"])} of the '
            f'device\'s matrix rate; {", ".join(speeds)}.</p>'
            f'<p class="note">{rows[0]["tokens"]:,} tokens, bf16. The matrix rate, {number(rate["tflops"], 4)} TFLOP/s, is that of a bf16 product of '
            f'{" × ".join(f"{n:,}" for n in rate["product"])}, measured in turn with the layers. All layers have equal active FLOPs.</p>'
            + table("One layer of experts", ["layer", "forward, ms", "share of the matrix rate", "forward + backward, ms", "TFLOP/s",
                                             "share of the matrix rate", "against dense", "memory, GiB"],
                    [(layer_name(line), number(line["forward_milliseconds"]), share(line["forward_share_of_rate"]), number(line["milliseconds"]),
                      number(line["tflops"]), share(line["share_of_rate"]), f"{line['speed_against_dense']:.2f}",
                      number(line["peak_mebibytes"] and line["peak_mebibytes"] / 1024)) for line in rows])
            + (f'<details><summary>Kernels of dtopp\'s layer</summary>{facts("Milliseconds, forward + backward", parts["milliseconds"])}</details>'
               if parts else ""))


def facts(caption, values):
    return table(caption, ["", ""], [(html.escape(str(name)), number(value)) for name, value in values.items()])


def training(lines):
    rows = [line for line in lines if line["case"] == "gpu_training"]
    if not rows:
        return ""
    line = rows[0]
    parts = next((line["parts"] for line in lines if line["case"] == "trace_breakdown"), {})
    return (f'<p class="answer">A step of {html.escape(line["preset"])}: {number(line["milliseconds"], 4)} ms, {number(line["tokens_per_second"])} tokens/s. '
            f'MFU {percent(line["mfu_of_peak"])} of the data sheet\'s rate.</p>'
            + table("A training step", ["model", "tokens per step", "ms", "tokens/s", "TFLOP/s", "MFU", "active experts", "peak memory, GiB", "against plan",
                                        "loss, first → last steps"],
                    [(html.escape(line["preset"]) + f' <span class="unit">{line["precision"]}, {html.escape(line["products"])}, recompute {line["recompute"]}'
                      f'{html.escape("".join(f", {change}" for change in line["overrides"]))}</span>',
                      number(line["global_batch_size"] * line["sequence_length"]), number(line["milliseconds"], 4), number(line["tokens_per_second"]),
                      number(line["tflops"]), share(line["mfu_of_peak"]), number(line["active_experts"]), number(line["peak_bytes"] / 2**30),
                      f"{line['peak_against_plan']:.3f}", f"{line['loss_first']:.3f} → {line['loss_last']:.3f}") for line in rows])
            + facts("Parts of a step, in ms", parts))


def with_error(pair):
    value, error = pair
    return f"{value:.3f}" + (f' <span class="unit">± {error:.3f}</span>' if error is not None else "")


def routers(lines):
    rows = [(name, number(1e3 * line["seconds"][name]), with_error(line["against_top_k"][name]), with_error(line["per_active_flop_against_top_k"][name]),
             number(line["active_experts"][name]), number(line["imbalance"][name]))
            for line in lines if line["case"] == "routing_methods" for name in line["against_top_k"]]
    return table("A training step of each routing method", ["method", "ms", "against top_k", "per active FLOP", "active experts", "imbalance"], rows)


def operators(lines):
    known = ("route", "linear_cross_entropy", "norm_rotary", "attention", "orthogonalize")
    rows = [(line["case"], number(line["milliseconds"]), number(line.get("tflops")),
             "; ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in line.items()
                       if name not in ("case", "tokens", "milliseconds", "tflops") and value is not None)) for line in lines if line["case"] in known]
    gemms = [(line["product"], number(line["milliseconds"], 4), f"{line['speed_against_grouped_mm']:.3f}", number(line["peak_mebibytes"] / 1024))
             for line in lines if line["case"] == "expert_gemm"]
    return (table("Operators, forward + backward", ["operator", "ms", "TFLOP/s", "beside"], rows, text=1)
            + table("The layer of experts with few fused kernels", ["fused", "ms", "speed against grouped_mm", "memory, GiB"], gemms))


def generation(lines):
    return table("", ["texts at a time", "tokens/s", "tokens", "active experts"],
                 [(line["texts"], number(line["tokens_per_second"]), number(line["tokens"]), number(line["active_experts"]))
                  for line in lines if line["case"] == "generation"])


def tests(pieces):
    rows, lost = [], []
    for piece in pieces:
        for line in piece["lines"]:
            if line.get("case") == "tests":
                rows.append((html.escape(piece["piece"].removeprefix("tests: ")), number(line["passed"]), number(line["skipped"]),
                             f'<span class="bad">{len(line["lost"])}</span>' if line["lost"] else "0", number(line["left"])))
                lost += line["lost"]
    return table("", ["group", "passed", "skipped", "failed", "not run"], rows) + (f"<pre>{html.escape(chr(10).join(lost))}</pre>" if lost else "")


def heading(report):
    machine = report["machine"]
    name = machine.get("name") or machine.get("cpu") or "an unknown device"
    about = [f"{label}: {number(machine[key])}" for key, label in (
        ("memory_gibibytes", "memory, GiB"), ("compute_capability", "compute capability"), ("driver", "driver"), ("cuda", "CUDA"), ("torch", "torch"),
        ("python", "Python"), ("cpu", "CPU"), ("cores", "cores"), ("cpu_memory_gibibytes", "memory of the CPU, GiB")) if machine.get(key)]
    trial = '<p class="answer bad">A trial on a CPU at toy sizes. Its figures measure nothing.</p>' if report["device"] == "cpu" else ""
    gaps = "".join(f'<p class="answer bad">{word}: {html.escape("; ".join(report[key]))}.</p>'
                   for key, word in (("missing", "Missing"), ("failed", "Failed")) if report[key])
    return (f"<h1>dtopp on {html.escape(name)}</h1><p class=about>Commit {html.escape(report['commit'])}, {report['written']}, "
            f"{report['seconds']:.0f} s. {'; '.join(about)}.</p>{trial}{gaps}")


def pieces_table(pieces):
    def command(piece):
        return html.escape(" ".join(["python3" if i == 0 and "python" in word else word for i, word in enumerate(piece["command"])]))

    rows = [(html.escape(piece["piece"]) + (f"<pre>{html.escape(piece['text'][-600:])}</pre>" if piece["status"] != "done" and piece["text"] else ""),
             piece["status"] if piece["status"] == "done" else f'<span class="bad">{piece["status"]}</span>', number(piece.get("seconds")),
             f"<code>{command(piece)}</code>") for piece in pieces]
    return table("", ["piece", "", "seconds", "command"], rows, text=1)


def render(report):
    lines = [line for piece in report["pieces"] for line in piece["lines"] if "case" in line]
    sections = [("The layer of experts", layers(lines)), ("Training", training(lines) + routers(lines)), ("Operators", operators(lines)),
                ("Generation", generation(lines)), ("Tests", tests(report["pieces"])), ("Pieces", pieces_table(report["pieces"]))]
    return ('<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src \'unsafe-inline\'; img-src data:">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
            f"<title>dtopp on a device</title>\n<style>\n{STYLE.read_text()}{OWN_STYLE}</style>\n</head>\n<body>\n<main id=\"report\">\n{heading(report)}\n"
            + "".join(f"<h2>{title}</h2>\n{body}" for title, body in sections if body) + "</main>\n</body>\n</html>\n")
