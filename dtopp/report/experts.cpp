#include <cmath>

#include "dtopp/base/format.h"
#include "dtopp/report/numbers.h"
#include "dtopp/report/sections.h"
#include "dtopp/study/statistics.h"

namespace dtopp::report {
namespace {

void add_layers(RunDrawing& drawing, size_t run, const char* name, const char* title, ReportOption& option) {
  if (auto map = drawing.layers(run, name, title)) option.blocks.push_back({std::move(*map)});
}

bool has_dead_experts(const ReportRun& run) {
  const runs::Series* dead = find_series(run, "moe/dead_experts");
  return dead != nullptr && std::ranges::any_of(dead->values, [](double value) { return value > 0; });
}

ReportOption run_option(RunDrawing& drawing, size_t run) {
  const ReportRun& one = drawing.input.runs[run];
  ReportOption option{one.name, {}};
  add_layers(drawing, run, "active_experts", "Active experts by layer", option);
  add_layers(drawing, run, "imbalance", "Imbalance by layer", option);
  add_layers(drawing, run, "scale", "Scale θ of the router by layer", option);
  if (has_dead_experts(one)) add_layers(drawing, run, "dead_experts", "Dead experts by layer", option);
  if (one.config.routing.scope == config::ThresholdScope::kLayer)
    add_layers(drawing, run, "threshold", "Threshold p by layer", option);
  std::ranges::move(activation_blocks(drawing, run), std::back_inserter(option.blocks));
  return option;
}

// Names the layers with the most and the fewest active experts over the last tenth of the logged steps.
std::string sentence_of_layers(const ReportRun& run) {
  std::map<int, double> means;
  for (int layer = 0; layer < run.config.model.num_layers; ++layer) {
    const auto mean = study::value_of_run(run.history, format("moe/layer_%02d/active_experts", layer)).value;
    if (mean) means[layer] = *mean;
  }
  if (means.empty()) return "";
  const auto by_mean = [](const auto& layer) { return layer.second; };
  const auto [most, high] = *std::ranges::max_element(means, {}, by_mean);
  const auto [fewest, low] = *std::ranges::min_element(means, {}, by_mean);
  if (high - low < 1e-9) return "";
  return "Layer " + std::to_string(most) + " uses the most experts (" + fixed(high, 2) +
         " per token), layer " + std::to_string(fewest) + " the fewest (" + fixed(low, 2) + ").";
}

std::string sentence_of_dead(const ReportRun& run) {
  const runs::Series* dead = find_series(run, "moe/dead_experts");
  if (dead == nullptr) return "";
  const double last = dead->values.back();
  if (!std::isfinite(last)) return "";
  const int64_t all = run.config.model.num_experts * run.config.model.num_layers;
  if (last == 0) return "No expert was left without tokens in the last logged step.";
  return whole(static_cast<int64_t>(last)) + " of " + whole(all) +
         " experts in all layers received no token in the last logged step.";
}

// The largest possible imbalance: all tokens select the same experts.
std::optional<double> most_imbalance(const ReportRun& run) {
  const auto active = study::value_of_run(run.history, "moe/active_experts").value;
  if (!active || !(*active > 0)) return std::nullopt;
  return static_cast<double>(run.config.model.num_experts) / *active;
}

ReportChart imbalance_chart(RunDrawing& drawing) {
  ReportChart chart{
      .title = "Imbalance",
      .y_label = "most used expert / mean expert",
      .lines = drawing.lines("moe/imbalance"),
      .note = "Dashed: the largest possible value, at which all tokens select the same experts."};
  for (size_t run = 0; run < drawing.input.runs.size(); ++run) {
    if (const auto most = most_imbalance(drawing.input.runs[run]))
      chart.levels.push_back({*most, "at most " + scaled(*most), static_cast<int>(run)});
  }
  return chart;
}

ReportTable experts_table(const ReportInput& input) {
  ReportTable table{"At the end", {"run", "imbalance", "at most", "dead experts", "of"}};
  for (size_t run = 0; run < input.runs.size(); ++run) {
    const runs::Series* dead = find_series(input.runs[run], "moe/dead_experts");
    if (dead == nullptr) continue;
    const config::ModelConfig& model = input.runs[run].config.model;
    const auto most = most_imbalance(input.runs[run]);
    table.rows.push_back({RunCell{static_cast<int>(run)}, value_text(input.runs[run], "moe/imbalance", 3),
                          most ? scaled(*most) : "–", fixed(dead->values.back(), 0),
                          whole(model.num_experts * model.num_layers)});
  }
  table.note =
      "Imbalance: ratio of the most used expert's tokens to the mean, averaged over layers and the last "
      "tenth of the logged steps. Dead: experts that received no token in the last logged step.";
  return table;
}

std::vector<double> shares(std::vector<double> counts) {
  const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
  for (double& count : counts) count = sum > 0 ? count / sum : 0;
  return counts;
}

// Returns a map with one row per layer and the x values 0, 1, ….
ReportHeatMap map_of(RunDrawing& drawing, size_t run, const std::string& label, const std::string& key,
                     const std::string& title, const std::string& own_x,
                     const std::vector<std::vector<double>>& rows) {
  ReportHeatMap map{title + ", " + label, "layer", static_cast<int>(run)};
  const std::string column = std::to_string(run) + " measured " + key + " " + label;
  map.own_x = own_x;
  std::vector<double> x(rows.at(0).size());
  std::iota(x.begin(), x.end(), 0.0);
  map.x = drawing.columns.add_exact(column + " x", x);
  for (size_t layer = 0; layer < rows.size(); ++layer) {
    map.rows.push_back(std::to_string(layer));
    map.cells.push_back(drawing.columns.add(column + " " + map.rows.back(), rows[layer]));
  }
  return map;
}

ReportTable kinds_table(const std::string& label, const std::vector<tasks::KindOfTokens>& kinds) {
  ReportTable table{"Experts by kind of token, " + label,
                    {"kind", "by", "tokens", "experts per token", "standard deviation"}};
  for (const tasks::KindOfTokens& kind : kinds) {
    table.rows.push_back({kind.kind, kind.by, whole(static_cast<int64_t>(kind.tokens)), fixed(kind.mean, 3),
                          fixed(kind.deviation, 3)});
  }
  return table;
}

}  // namespace

std::optional<ReportSection> experts_section(RunDrawing& drawing) {
  const ReportInput& input = drawing.input;
  if (!any_run_has(input, "moe/imbalance")) return std::nullopt;
  ReportSection section{"experts", "How experts are used"};
  if (input.runs.size() == 1) {
    const std::string layers = sentence_of_layers(input.runs[0]);
    section.answers.push_back(layers + (layers.empty() ? "" : " ") + sentence_of_dead(input.runs[0]));
  }
  ReportChoice choice{"layers", "Layers of", {}};
  for (size_t run = 0; run < input.runs.size(); ++run) {
    ReportOption option = run_option(drawing, run);
    if (!option.blocks.empty()) choice.options.push_back(std::move(option));
  }
  if (!choice.options.empty()) section.blocks.push_back({std::move(choice)});
  section.blocks.push_back({imbalance_chart(drawing)});
  if (any_run_has(input, "moe/common_logit_share"))
    section.blocks.push_back({ReportChart{
        .title = "Logits in common",
        .y_label = "share of the router logits' variance",
        .lines = drawing.lines("moe/common_logit_share"),
        .from_zero = true,
        .note = "The part of the logits that all tokens of a step have in common. Near 1, the router hardly "
                "distinguishes tokens."}});
  if (std::ranges::any_of(input.runs, has_dead_experts))
    section.blocks.push_back({ReportChart{.title = "Dead experts",
                                          .y_label = "in all layers",
                                          .lines = drawing.lines("moe/dead_experts"),
                                          .from_zero = true}});
  if (input.runs.size() > 1) section.blocks.push_back({experts_table(input)});
  return section;
}

std::vector<ReportBlock> activation_blocks(RunDrawing& drawing, size_t run) {
  std::vector<ReportBlock> blocks;
  for (const auto& [model, evaluation] : drawing.input.runs[run].evaluations.by_model) {
    for (const tasks::TextActivations& measured : evaluation.activations) {
      const std::string label = measured.texts + ", " + tasks::label_of(model);
      if (!measured.layers.empty()) {
        std::vector<std::vector<double>> loads, histograms;
        for (const tasks::LayerActivations& layer : measured.layers) {
          loads.push_back(layer.expert_load);
          histograms.push_back(shares(layer.histogram));
        }
        blocks.push_back({map_of(drawing, run, label, "load", "Share of tokens that selected each expert",
                                 "expert", loads)});
        blocks.push_back(
            {map_of(drawing, run, label, "histogram", "Share of tokens by their number of experts",
                    "experts per token", histograms)});
      }
      if (!measured.kinds.empty()) blocks.push_back({kinds_table(label, measured.kinds)});
    }
  }
  return blocks;
}

}  // namespace dtopp::report
