#include <nlohmann/json.hpp>

#include "dtopp/base/json.h"
#include "dtopp/report/document/columns.h"
#include "dtopp/report/document/document.h"

namespace dtopp::report {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson blocks_json(const std::vector<ReportBlock>& blocks);

void add_text(OrderedJson& json, const char* key, const std::string& text) {
  if (!text.empty()) json[key] = text;
}

OrderedJson line_json(const ReportLine& line) {
  OrderedJson json = {{"run", line.run}, {"name", line.name}, {"x", line.x}, {"y", line.y}};
  if (line.band) json["band"] = *line.band;
  if (line.marks) json["marks"] = true;
  if (line.minor) json["minor"] = true;
  if (line.of_many) json["of_many"] = true;
  return json;
}

OrderedJson block_json(const ReportChart& chart) {
  OrderedJson json = {{"type", "lines"},
                      {"title", chart.title},
                      {"y_label", chart.y_label},
                      {"log", chart.log},
                      {"from_zero", chart.from_zero},
                      {"lines", OrderedJson::array()},
                      {"levels", OrderedJson::array()}};
  for (const ReportLine& line : chart.lines) json["lines"].push_back(line_json(line));
  for (const ReportLevel& level : chart.levels) {
    OrderedJson& made =
        json["levels"].emplace_back(OrderedJson{{"value", level.value}, {"label", level.label}});
    if (level.run) made["run"] = *level.run;
  }
  if (chart.exact) json["exact"] = true;
  add_text(json, "own_x", chart.own_x);
  add_text(json, "note", chart.note);
  return json;
}

OrderedJson block_json(const ReportHeatMap& map) {
  OrderedJson json = {{"type", "heat"},   {"title", map.title}, {"y_label", map.y_label}, {"run", map.run},
                      {"rows", map.rows}, {"x", map.x},         {"cells", map.cells}};
  add_text(json, "own_x", map.own_x);
  add_text(json, "note", map.note);
  return json;
}

OrderedJson block_json(const ReportTable& table) {
  OrderedJson json = {
      {"type", "table"}, {"title", table.title}, {"head", table.head}, {"rows", OrderedJson::array()}};
  for (const auto& row : table.rows) {
    OrderedJson& cells = json["rows"].emplace_back(OrderedJson::array());
    for (const ReportCell& cell : row) {
      if (const auto* run = std::get_if<RunCell>(&cell))
        cells.push_back({{"run", run->run}});
      else
        cells.push_back(std::get<std::string>(cell));
    }
  }
  add_text(json, "note", table.note);
  return json;
}

OrderedJson block_json(const ReportPicture& picture) {
  return {
      {"type", "picture"}, {"title", picture.title}, {"run", picture.run}, {"png", base64_of(picture.png)}};
}

OrderedJson block_json(const ReportDetails& details) {
  return {{"type", "details"}, {"title", details.title}, {"blocks", blocks_json(details.blocks)}};
}

OrderedJson block_json(const ReportChoice& choice) {
  OrderedJson json = {
      {"type", "choice"}, {"id", choice.id}, {"title", choice.title}, {"options", OrderedJson::array()}};
  for (const ReportOption& option : choice.options)
    json["options"].push_back({{"name", option.name}, {"blocks", blocks_json(option.blocks)}});
  return json;
}

OrderedJson blocks_json(const std::vector<ReportBlock>& blocks) {
  OrderedJson json = OrderedJson::array();
  for (const ReportBlock& block : blocks)
    json.push_back(std::visit([](const auto& content) { return block_json(content); }, block.content));
  return json;
}

OrderedJson clock_json(const std::optional<ReportedRun::Clock>& clock) {
  if (!clock) return nullptr;
  OrderedJson json = {{"steps", clock->steps}, {"tokens", clock->tokens}};
  if (clock->hours) json["hours"] = *clock->hours;
  if (clock->flops) json["flops"] = *clock->flops;
  return json;
}

OrderedJson column_json(int id, const ReportColumn& column) {
  static constexpr const char* kNames[] = {"affine", "f32", "f64"};
  return {{"id", id},
          {"kind", kNames[static_cast<size_t>(column.kind)]},
          {"n", column.n},
          {"first", column.first},
          {"step", column.step}};
}

OrderedJson document_json(const ReportDocument& document, const Columns& columns) {
  OrderedJson json = {{"title", document.title}, {"about", document.about}, {"notes", document.notes}};
  for (const char* list : {"runs", "clocks", "sections", "columns"}) json[list] = OrderedJson::array();
  for (const ReportedRun& run : document.runs) {
    json["runs"].push_back(
        {{"name", run.name}, {"tag", run.tag}, {"about", run.about}, {"style", run.style}});
    json["clocks"].push_back(clock_json(run.clock));
  }
  for (const ReportSection& section : document.sections) {
    json["sections"].push_back({{"id", section.id},
                                {"title", section.title},
                                {"answers", section.answers},
                                {"blocks", blocks_json(section.blocks)}});
  }
  for (size_t id = 0; id < columns.all().size(); ++id)
    json["columns"].push_back(column_json(static_cast<int>(id), columns.all()[id]));
  return json;
}

}  // namespace

std::string to_json(const ReportDocument& document, const Columns& columns,
                    std::optional<uint64_t> generation) {
  OrderedJson json = document_json(document, columns);
  json["generation"] = generation ? OrderedJson(*generation) : OrderedJson(nullptr);
  return dump_json(json);
}

std::string news_json(const ReportDocument& document, const Columns& columns, uint64_t since,
                      const std::optional<std::string>& trouble) {
  OrderedJson json = {{"generation", columns.generation()},
                      {"trouble", trouble ? OrderedJson(*trouble) : OrderedJson(nullptr)}};
  if (since == columns.generation()) return dump_json(json);
  json["document"] = document_json(document, columns);
  json["columns"] = OrderedJson::array();
  for (size_t i = 0; i < columns.all().size(); ++i) {
    const int id = static_cast<int>(i);
    const ReportColumn& column = columns.at(id);
    const uint64_t from = columns.known_to(id, since);
    if (from == column.n) continue;
    OrderedJson& made = json["columns"].emplace_back(column_json(id, column));
    made["from"] = from;
    made["data"] = base64_of(column, from);
  }
  return dump_json(json);
}

}  // namespace dtopp::report
