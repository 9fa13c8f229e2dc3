#include "dtopp/report/document/numbers.h"
#include "dtopp/report/sections/sections.h"

namespace dtopp::report {

using namespace report_text;

std::optional<ReportSection> samples_section(RunDrawing& drawing) {
  ReportSection section{"samples", "Samples"};
  ReportTable texts{"Newest texts", {"run", "step", "text"}};
  texts.note = "Before the bar: an opening from held-out data. After it: what the model wrote.";
  for (size_t run = 0; run < drawing.input.runs.size(); ++run) {
    const auto& samples = drawing.input.runs[run].samples;
    if (!samples) continue;
    const int id = static_cast<int>(run);
    for (const std::string& text : samples->texts)
      texts.rows.push_back({RunCell{id}, whole(samples->step), "… " + text});
    if (!samples->png.empty())
      section.blocks.push_back({ReportPicture{"Pictures at step " + whole(samples->step), id, samples->png}});
    else if (samples->texts.empty())
      section.answers.push_back(samples->file.string() + " is empty, or too large to show here.");
  }
  if (!texts.rows.empty()) section.blocks.insert(section.blocks.begin(), {std::move(texts)});
  if (section.blocks.empty() && section.answers.empty()) return std::nullopt;
  return section;
}

}  // namespace dtopp::report
