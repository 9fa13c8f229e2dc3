#include <algorithm>
#include <numeric>

#include "dtopp/report/document/numbers.h"
#include "dtopp/report/sections/sections.h"

namespace dtopp::report {
namespace {

using namespace report_text;

std::vector<double> counted(size_t n) {
  std::vector<double> values(n);
  std::iota(values.begin(), values.end(), 0.0);
  return values;
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
  map.x = drawing.columns.add_exact(column + " x", counted(rows.at(0).size()));
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
