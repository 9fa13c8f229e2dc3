#include <cmath>
#include <set>

#include "dtopp/report/numbers.h"
#include "dtopp/report/sections.h"
#include "dtopp/study/statistics.h"

namespace dtopp::report {
namespace {

const char* unit_of(const ReportInput& input) {
  return input.runs[0].config.model.type == config::ModelType::kLanguageModel ? "nats per token"
                                                                              : "mean squared error";
}

ReportChart training_chart(RunDrawing& drawing) {
  ReportChart chart{"Training loss", unit_of(drawing.input)};
  for (size_t run = 0; run < drawing.input.runs.size(); ++run) {
    const ReportRun& one = drawing.input.runs[run];
    if (const runs::Series* series = find_series(one, main_loss(one)))
      chart.lines.push_back(drawing.line(run, main_loss(one), *series));
  }
  return chart;
}

ReportChart validation_chart(RunDrawing& drawing) {
  ReportChart chart{"Validation loss", unit_of(drawing.input), drawing.lines("val/loss", {.marks = true})};
  const LineStyle average{.name = "averaged weights (EMA)", .marks = true, .minor = true};
  std::ranges::move(drawing.lines("val/ema_loss", average), std::back_inserter(chart.lines));
  return chart;
}

// Returns the mean over a group's seeds and its half-width, at the steps that all seeds have.
std::optional<std::pair<runs::Series, runs::Series>> mean_over_seeds(const ReportInput& input,
                                                                     const RunGroup& group) {
  std::map<int64_t, std::vector<double>> values;
  for (const size_t run : group.runs) {
    const runs::Series* series = find_series(input.runs[run], "val/loss");
    if (series == nullptr) return std::nullopt;
    for (size_t i = 0; i < series->steps.size(); ++i) values[series->steps[i]].push_back(series->values[i]);
  }
  runs::Series mean, half_width;
  for (const auto& [step, samples] : values) {
    const study::Interval interval = study::mean_interval(samples);
    if (samples.size() < group.runs.size() || !interval.half_width) continue;
    mean.steps.push_back(step);
    mean.values.push_back(*interval.mean);
    half_width.steps.push_back(step);
    half_width.values.push_back(*interval.half_width);
  }
  if (mean.steps.empty()) return std::nullopt;
  return std::pair{mean, half_width};
}

ReportChart seeds_chart(RunDrawing& drawing) {
  ReportChart chart{"Validation loss over seeds", "mean, 95 % interval"};
  for (const RunGroup& group : drawing.input.groups) {
    if (group.runs.size() < 2) continue;
    const LineStyle style{.name = group.name + ", mean of " + count_of(group.runs.size(), "seed"),
                          .marks = true};
    if (const auto mean = mean_over_seeds(drawing.input, group)) {
      chart.lines.push_back(drawing.line(group.runs[0], "seeds val/loss", mean->first, style, &mean->second));
      chart.lines.back().of_many = true;
    }
  }
  chart.note = "FLOPs and hours are those of the configuration's first seed.";
  return chart;
}

ReportDetails loss_terms(RunDrawing& drawing) {
  static constexpr std::pair<const char*, const char*> kTerms[] = {
      {"train/loss", "All terms, as differentiated"},
      {"train/lm_z_loss", "z-loss of the output"},
      {"train/load_balance_loss", "Load balance"},
      {"train/dynamic_loss", "Router entropy"},
      {"train/router_z_loss", "z-loss of the router"}};
  ReportDetails details{"Terms of the loss, each without its coefficient", {}};
  for (const auto& [metric, title] : kTerms) {
    if (any_run_has_more_than_zero(drawing.input, metric))
      details.blocks.push_back({ReportChart{title, metric, drawing.lines(metric)}});
  }
  return details;
}

// Adds a diffusion transformer's validation loss by the noise of its timesteps.
void add_noise_bands(RunDrawing& drawing, ReportSection& section) {
  ReportChoice choice{"noise", "Run", {}};
  for (size_t run = 0; run < drawing.input.runs.size(); ++run) {
    const ReportRun& one = drawing.input.runs[run];
    NamedSeries rows;
    for (int band = 0; band < 10; ++band) {
      const runs::Series* series = find_series(one, "val/loss_t" + std::to_string(band));
      if (series == nullptr) break;
      rows.emplace_back(std::to_string(band), series);
    }
    if (rows.empty()) continue;
    const char* title = "Validation loss by noise, from little (0) to much";
    choice.options.push_back({one.name, {{drawing.heat_map(run, "loss_t", title, "tenth", rows)}}});
  }
  if (!choice.options.empty()) section.blocks.push_back({std::move(choice)});
}

// Returns the sources of held-out data that any run reports, from its metrics "val/SOURCE/loss".
std::vector<std::string> held_out_sources(const ReportInput& input) {
  constexpr std::string_view kBegin = "val/", kEnd = "/loss";
  std::set<std::string> names;
  for (const ReportRun& run : input.runs) {
    for (const auto& [metric, series] : run.history.series)
      if (metric.starts_with(kBegin) && metric.ends_with(kEnd) && metric.size() > kBegin.size() + kEnd.size())
        names.insert(metric.substr(kBegin.size(), metric.size() - kBegin.size() - kEnd.size()));
  }
  return {names.begin(), names.end()};
}

// Adds the losses and active experts by source of the held-out data, if any run reports them.
void add_sources(RunDrawing& drawing, ReportSection& section) {
  const ReportInput& input = drawing.input;
  const std::vector<std::string> names = held_out_sources(input);
  if (names.empty()) return;
  ReportTable table{"Validation by source, at the end", {"run"}};
  ReportChoice choice{"source", "Source", {}};
  const bool is_mixed = any_run_has(input, "val/mixture_loss"),
             is_routed = any_run_has(input, "val/active_experts");
  if (is_mixed) table.head.emplace_back("loss of the mixture");
  for (const std::string& name : names) {
    table.head.push_back(name + ": loss");
    if (is_routed) table.head.push_back("experts");
    ReportOption option{name, {}};
    for (const auto& [metric, title, unit] :
         {std::tuple{"/loss", "Validation loss of ", unit_of(input)},
          std::tuple{"/active_experts", "Active experts at validation on ", "per token and layer"}}) {
      add_chart(option.blocks, {title + name, unit, drawing.lines("val/" + name + metric, {.marks = true})});
    }
    choice.options.push_back(std::move(option));
  }
  for (size_t i = 0; i < input.runs.size(); ++i) {
    std::vector<ReportCell> row = {RunCell{static_cast<int>(i)}};
    if (is_mixed) row.emplace_back(value_text(input.runs[i], "val/mixture_loss", 4));
    for (const std::string& name : names) {
      row.emplace_back(value_text(input.runs[i], "val/" + name + "/loss", 4));
      if (is_routed) row.emplace_back(value_text(input.runs[i], "val/" + name + "/active_experts", 2));
    }
    table.rows.push_back(std::move(row));
  }
  section.blocks.push_back({std::move(table)});
  section.blocks.push_back({std::move(choice)});
}

// Returns the losses that `dtopp evaluate text` has written into the runs' folders; nullopt: none.
std::optional<ReportTable> texts_table(const ReportInput& input) {
  ReportTable table{"Evaluated texts",
                    {"run", "text", "loss", "perplexity", "bits per byte", "active experts", "step", "budget",
                     "precision"}};
  for (size_t i = 0; i < input.runs.size(); ++i) {
    const bool is_dense = input.runs[i].config.model.is_dense();
    for (const auto& [model, evaluation] : input.runs[i].evaluations.by_model) {
      const std::string budget = model.target_experts > 0 ? scaled(model.target_experts) : "as trained";
      for (const tasks::TextLoss& text : evaluation.texts)
        table.rows.push_back({RunCell{static_cast<int>(i)}, text.text, fixed(text.nll, 4),
                              scaled(std::exp(text.nll)), fixed(text.bits_per_byte, 4),
                              fixed(text.active_experts, 3), whole(model.step), is_dense ? "–" : budget,
                              model.in_bf16 ? "bf16" : "fp32"});
    }
  }
  if (table.rows.empty()) return std::nullopt;
  table.note = "From dtopp evaluate text --output. Loss: nats per token.";
  return table;
}

// Returns a line per evaluated text and checkpoint over the budgets at which it was measured.
ReportChart budgets_chart(RunDrawing& drawing) {
  ReportChart chart{"Loss at other budgets, from one checkpoint", "nats per token"};
  chart.own_x = "active experts per token";
  for (size_t run = 0; run < drawing.input.runs.size(); ++run) {
    std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> lines;
    for (const auto& [model, evaluation] : drawing.input.runs[run].evaluations.by_model) {
      if (model.target_experts == 0) continue;
      const tasks::EvaluatedModel checkpoint{.step = model.step, .in_bf16 = model.in_bf16};
      for (const tasks::TextLoss& text : evaluation.texts) {
        auto& [x, y] = lines[text.text + ", " + tasks::label_of(checkpoint)];
        x.push_back(std::isnan(text.active_experts) ? model.target_experts : text.active_experts);
        y.push_back(text.nll);
      }
    }
    for (const auto& [name, points] : lines) {
      const auto& [x, y] = points;
      if (x.size() > 1) chart.lines.push_back(drawing.points(run, "budgets", name, x, y));
    }
  }
  return chart;
}

std::pair<double, int64_t> lowest(const runs::Series& series) {
  std::pair<double, int64_t> found{std::nan(""), 0};
  for (size_t i = 0; i < series.values.size(); ++i) {
    if (std::isfinite(series.values[i]) && !(series.values[i] >= found.first))
      found = {series.values[i], series.steps[i]};
  }
  return found;
}

ReportTable final_table(const ReportInput& input) {
  ReportTable table{"At the end",
                    {"run", "steps", "tokens", "training loss", "validation loss", "lowest", "at step"}};
  for (size_t i = 0; i < input.runs.size(); ++i) {
    const ReportRun& run = input.runs[i];
    const runs::Series* validation = find_series(run, "val/loss");
    const runs::Series& tokens = run.history.tokens;
    const auto best = validation != nullptr ? lowest(*validation) : std::pair{std::nan(""), int64_t{0}};
    table.rows.push_back({RunCell{static_cast<int>(i)},
                          tokens.steps.empty() ? "0" : whole(tokens.steps.back()),
                          tokens.values.empty() ? "0" : whole(static_cast<int64_t>(tokens.values.back())),
                          value_text(run, main_loss(run), 4), value_text(run, "val/loss", 4),
                          fixed(best.first, 4), std::isnan(best.first) ? "–" : whole(best.second)});
  }
  table.note =
      "Training loss: without routing losses, mean over the last tenth of the logged steps. Validation loss: "
      "the last one.";
  return table;
}

std::string sentence_of_loss(const ReportRun& run) {
  const runs::Series* series = find_series(run, "val/loss");
  const char* which = "Validation loss";
  if (series == nullptr) {
    series = find_series(run, main_loss(run));
    which = "Training loss";
  }
  if (series == nullptr) return "No loss has been logged yet.";
  const runs::Series finite = finite_points(*series);
  if (finite.values.empty()) return std::string(which) + " was never finite.";
  const double first = finite.values.front(), last = finite.values.back();
  const bool is_lost = finite.steps.back() != series->steps.back();
  const std::string end =
      fixed(last, 3) + " at step " + whole(finite.steps.back()) + (is_lost ? ", then diverged." : ".");
  if (finite.values.size() < 2) return std::string(which) + " was " + end;
  const char* way = last < first ? " fell from " : last > first ? " rose from " : " went from ";
  return which + (way + fixed(first, 3)) + " at step " + whole(finite.steps.front()) + " to " + end;
}

std::string sentence_of_best(const ReportInput& input) {
  const ReportRun* best = nullptr;
  double loss = std::numeric_limits<double>::infinity();
  for (const ReportRun& run : input.runs) {
    const runs::Series* series = find_series(run, "val/loss");
    if (series == nullptr || !(series->values.back() < loss)) continue;
    loss = series->values.back();
    best = &run;
  }
  if (best != nullptr)
    return "The lowest last validation loss is " + fixed(loss, 4) + ", of " + best->name + ".";
  return any_run_has(input, "val/loss") ? "Every run with a validation loss diverged."
                                        : "No run has a validation loss yet.";
}

std::string sentence_of_skips(const ReportInput& input) {
  double skipped = 0;
  for (const ReportRun& run : input.runs) {
    const runs::Series* series = find_series(run, "train/skipped_steps");
    if (series != nullptr) skipped += series->values.back();
  }
  if (skipped == 0) return "No step was skipped.";
  return count_of(static_cast<size_t>(skipped), "step") + (skipped == 1 ? " was" : " were") +
         " skipped because a loss or gradient was not finite.";
}

}  // namespace

std::optional<ReportSection> learned_section(RunDrawing& drawing) {
  const ReportInput& input = drawing.input;
  ReportSection section{"learned", "Did it learn"};
  section.answers = {(input.runs.size() == 1 ? sentence_of_loss(input.runs[0]) : sentence_of_best(input)) +
                     " " + sentence_of_skips(input)};
  add_chart(section.blocks, training_chart(drawing));
  add_chart(section.blocks, validation_chart(drawing));
  // The compared section shows a study's own curves over seeds.
  if (input.curves.empty()) add_chart(section.blocks, seeds_chart(drawing));
  section.blocks.push_back({final_table(input)});
  add_sources(drawing, section);
  if (auto texts = texts_table(input)) section.blocks.push_back({std::move(*texts)});
  add_chart(section.blocks, budgets_chart(drawing));
  if (auto unusual = unusual_steps(input)) section.blocks.push_back({std::move(*unusual)});
  add_chart(section.blocks, {.title = "Gradient norm",
                             .y_label = "before clipping",
                             .lines = drawing.lines("train/grad_norm"),
                             .log = true});
  add_chart(section.blocks, {.title = "Learning rate",
                             .y_label = "learning rate",
                             .lines = drawing.lines("train/lr"),
                             .from_zero = true,
                             .exact = true});
  if (any_run_has_more_than_zero(input, "train/skipped_steps"))
    add_chart(section.blocks, {.title = "Skipped steps",
                               .y_label = "so far",
                               .lines = drawing.lines("train/skipped_steps"),
                               .from_zero = true,
                               .exact = true});
  add_noise_bands(drawing, section);
  ReportDetails terms = loss_terms(drawing);
  if (!terms.blocks.empty()) section.blocks.push_back({std::move(terms)});
  return section;
}

}  // namespace dtopp::report
