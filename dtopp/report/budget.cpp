#include <cmath>

#include "dtopp/report/numbers.h"
#include "dtopp/report/sections.h"
#include "dtopp/study/statistics.h"

namespace dtopp::report {
namespace {

constexpr char kCount[] = "moe/active_experts";
constexpr char kTokenDeviation[] = "moe/token_mean_std";
constexpr char kPairDeviation[] = "moe/active_experts_std";

// Returns the run's target of active experts: the mean of T over layers for DTop-p, k for Top-k. Top-p and
// dense models have none.
std::optional<double> budget_of(const config::RunConfig& config) {
  const config::RoutingConfig& routing = config.routing;
  if (config.model.is_dense() || routing.method == config::RoutingMethod::kTopP) return std::nullopt;
  if (!routing.schedule.empty()) return std::nullopt;  // the target changes
  return config::mean_experts(routing);
}

ReportChart count_chart(RunDrawing& drawing) {
  const ReportInput& input = drawing.input;
  ReportChart chart{"Active experts per token", "mean over tokens and layers"};
  // The bands of many runs would hide each other.
  const bool has_bands = input.runs.size() <= 4;
  const std::string deviation = any_run_has(input, kTokenDeviation) ? kTokenDeviation : kPairDeviation;
  chart.lines = drawing.lines(kCount, {.band = has_bands ? deviation : ""});
  for (size_t run = 0; run < input.runs.size(); ++run) {
    if (const auto target = budget_of(input.runs[run].config))
      chart.levels.push_back({*target, "target " + scaled(*target), static_cast<int>(run)});
  }
  chart.from_zero = true;
  if (has_bands)
    chart.note = deviation == kTokenDeviation
                     ? "Shaded: the standard deviation over tokens of a token's mean over layers."
                     : "Shaded: the standard deviation over all pairs of a token and a layer.";
  return chart;
}

ReportChart threshold_chart(RunDrawing& drawing) {
  ReportChart chart{"Threshold p", "p, mean over layers", drawing.lines("moe/threshold")};
  const LineStyle solved{.name = "solved", .minor = true};
  std::ranges::move(drawing.lines("moe/threshold_solved", solved), std::back_inserter(chart.lines));
  chart.exact = true;
  if (any_run_has(drawing.input, "moe/threshold_solved"))
    chart.note = "Dotted: the p that would have met the target exactly on the step's own tokens.";
  return chart;
}

// Adds one chart per value of a router's state that some run has, other than its threshold.
void add_state_charts(RunDrawing& drawing, std::vector<ReportBlock>& blocks) {
  const auto add = [&](const char* title, const char* axis, const char* metric) {
    add_chart(blocks, {.title = title, .y_label = axis, .lines = drawing.lines(metric), .exact = true});
  };
  add("Spread of the biases", "largest minus smallest, mean over layers", "moe/bias_spread");
  add("Weight λ of the ReLU router's loss", "λ", "moe/lambda");
  add("Thresholds of the experts", "mean over experts and layers", "moe/cut");
  add("Spread of the experts' thresholds", "largest minus smallest, mean over layers", "moe/cut_spread");
  add("Tokens without an expert", "share of pairs of a token and a layer", "moe/empty_share");
}

ReportChart deviation_chart(RunDrawing& drawing) {
  ReportChart chart{"Variation over tokens", "standard deviation of experts", drawing.lines(kTokenDeviation)};
  const LineStyle pooled{.name = "over pairs of token and layer", .minor = true};
  std::ranges::move(drawing.lines(kPairDeviation, pooled), std::back_inserter(chart.lines));
  chart.from_zero = true;
  if (any_run_has(drawing.input, kTokenDeviation))
    chart.note =
        "Line: over tokens, of a token's mean over layers. Dotted: over all pairs of a token and a layer, "
        "which includes differences between layers.";
  return chart;
}

// Returns a map with one row per range of counts. Ranges above the largest count are left out.
std::optional<ReportHeatMap> shares_map(RunDrawing& drawing, size_t run) {
  NamedSeries rows;
  for (const runs::CountRange& range : runs::count_ranges(drawing.input.runs[run].config.model.num_experts)) {
    const runs::Series* shares = find_series(drawing.input.runs[run], range.metric());
    if (shares == nullptr) return std::nullopt;
    rows.emplace_back(range.name(), shares);
  }
  const auto is_zero = [](const runs::Series* row) {
    return std::ranges::none_of(row->values, [](double share) { return share > 0; });
  };
  while (!rows.empty() && is_zero(rows.back().second)) rows.pop_back();
  if (rows.empty()) return std::nullopt;
  return drawing.heat_map(run, "shares", "Share of tokens by their number of experts, over training",
                          "experts", rows);
}

struct Budget {
  study::RunValue held;  // experts per token
  std::optional<double> target;
  std::optional<int64_t> settled;
};

std::optional<Budget> budget_held(const ReportRun& run) {
  const runs::Series* count = find_series(run, kCount);
  if (count == nullptr) return std::nullopt;
  Budget budget{study::value_of_run(run.history, kCount), budget_of(run.config), std::nullopt};
  if (budget.target && config::holds_target(run.config.routing.method))
    budget.settled = settled_at(*count, *budget.target);
  return budget;
}

std::string off_target(const Budget& budget) {
  if (!budget.target || !budget.held.value) return "–";
  const double percent = 100 * (*budget.held.value / *budget.target - 1);
  return (percent >= 0.005 ? "+" : "") + fixed(percent, 2) + " %";
}

ReportTable budget_table(const ReportInput& input) {
  ReportTable table{"Over the last tenth of the logged steps",
                    {"run", "target", "active experts", "off by", "settled at step",
                     "standard deviation over tokens", "over pairs", "p at the end", "active at validation"}};
  for (size_t i = 0; i < input.runs.size(); ++i) {
    const ReportRun& run = input.runs[i];
    const auto budget = budget_held(run);
    if (!budget) continue;
    const runs::Series* threshold = find_series(run, "moe/threshold");
    table.rows.push_back({RunCell{static_cast<int>(i)}, budget->target ? scaled(*budget->target) : "–",
                          value_text(run, kCount, 4), off_target(*budget),
                          budget->settled ? whole(*budget->settled) : "–",
                          value_text(run, kTokenDeviation, 3), value_text(run, kPairDeviation, 3),
                          threshold != nullptr ? fixed(threshold->values.back(), 4) : "–",
                          value_text(run, "val/active_experts", 3)});
  }
  table.note = "Settled: from this step on every mean over " + std::to_string(kSettleLines) +
               " logged steps lies within " + scaled(100 * kSettleTolerance) + " % of the target.";
  return table;
}

std::string sentence_of_budget(const ReportRun& run) {
  const auto budget = budget_held(run);
  if (!budget || !budget->held.value) return "";
  std::string text =
      "Tokens use " + fixed(*budget->held.value, 3) + " experts on average over the last tenth";
  if (!budget->target) return text + "; Top-p has no target.";
  text += ", the budget is " + scaled(*budget->target) + " (" + off_target(*budget) + ").";
  if (!config::holds_target(run.config.routing.method)) return text;
  if (find_series(run, kCount)->values.size() < kSettleLines) return text;
  if (!budget->settled) return text + " It has not settled.";
  return text + " Means over " + std::to_string(kSettleLines) + " logged steps have stayed within " +
         scaled(100 * kSettleTolerance) + " % of it since step " + whole(*budget->settled) + ".";
}

std::string sentence_of_budgets(const ReportInput& input) {
  size_t controlled = 0, settled = 0;
  double farthest = 0;
  for (const ReportRun& run : input.runs) {
    const auto budget = budget_held(run);
    if (!budget || !budget->target || !config::holds_target(run.config.routing.method)) continue;
    ++controlled;
    if (budget->settled) ++settled;
    if (budget->held.value)
      farthest = std::max(farthest, std::abs(*budget->held.value / *budget->target - 1));
  }
  if (controlled == 0) return "No controller holds a budget in these runs.";
  return std::to_string(settled) + " of " + count_of(controlled, "run") + " with a controller " +
         (settled == 1 ? "has" : "have") + " settled; over the last tenth the mean is at most " +
         fixed(100 * farthest, 2) + " % off its target.";
}

}  // namespace

std::optional<int64_t> settled_at(const runs::Series& series, double target) {
  const auto [steps, values] = finite_points(series);
  if (values.size() < kSettleLines) return std::nullopt;
  size_t first = values.size();
  double sum = 0;
  for (size_t from = values.size(); from-- > 0;) {
    sum += values[from];
    if (from + kSettleLines > values.size()) continue;
    if (from + kSettleLines < values.size()) sum -= values[from + kSettleLines];
    if (!(std::abs(sum / kSettleLines - target) <= kSettleTolerance * target)) break;
    first = from;
  }
  return first == values.size() ? std::nullopt : std::optional(steps[first]);
}

std::optional<ReportSection> budget_section(RunDrawing& drawing) {
  const ReportInput& input = drawing.input;
  if (!any_run_has(input, kCount)) return std::nullopt;
  ReportSection section{"budget", "Does the budget hold"};
  const std::string answer =
      input.runs.size() == 1 ? sentence_of_budget(input.runs[0]) : sentence_of_budgets(input);
  if (!answer.empty()) section.answers.push_back(answer);
  section.blocks.push_back({count_chart(drawing)});
  add_chart(section.blocks, threshold_chart(drawing));
  add_state_charts(drawing, section.blocks);
  section.blocks.push_back({budget_table(input)});
  section.blocks.push_back({deviation_chart(drawing)});
  ReportChoice shares{"shares", "Tokens of", {}};
  for (size_t run = 0; run < input.runs.size(); ++run) {
    if (auto map = shares_map(drawing, run))
      shares.options.push_back({input.runs[run].name, {{std::move(*map)}}});
  }
  if (!shares.options.empty()) section.blocks.push_back({std::move(shares)});
  return section;
}

}  // namespace dtopp::report
