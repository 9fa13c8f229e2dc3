#include "dtopp/report/document.h"

#include <bit>
#include <cmath>
#include <cstring>

#include <nlohmann/json.hpp>

#include "dtopp/base/json.h"

namespace dtopp::report {
namespace {

static_assert(std::endian::native == std::endian::little, "pages carry little-endian numbers");

constexpr size_t kGenerationsKept = 16;

bool is_affine(std::span<const double> values, double first, double step) {
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] != first + step * static_cast<double>(i)) return false;
  return true;
}

template <class Number>
std::string bytes_of(std::span<const double> values) {
  std::string bytes(values.size() * sizeof(Number), '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    auto number = static_cast<Number>(values[i]);
    if (!std::isfinite(number)) number = std::numeric_limits<Number>::quiet_NaN();
    std::memcpy(bytes.data() + i * sizeof(Number), &number, sizeof(Number));
  }
  return bytes;
}

ReportColumn make_column(std::span<const double> values, ReportColumn::Kind kind) {
  ReportColumn column;
  column.n = values.size();
  if (!values.empty()) {
    column.first = values[0];
    column.step = values.size() > 1 ? values[1] - values[0] : 0;
    if (std::isfinite(column.first) && std::isfinite(column.step) &&
        is_affine(values, column.first, column.step))
      return column;
  }
  column.kind = kind;
  column.first = column.step = 0;
  column.bytes = kind == ReportColumn::Kind::kFloat64 ? bytes_of<double>(values) : bytes_of<float>(values);
  return column;
}

bool continues(const ReportColumn& longer, const ReportColumn& shorter) {
  if (longer.kind != shorter.kind || longer.n < shorter.n) return false;
  if (longer.kind == ReportColumn::Kind::kAffine)
    return longer.first == shorter.first && (longer.step == shorter.step || shorter.n < 2);
  return longer.bytes.starts_with(shorter.bytes);
}

using OrderedJson = ordered_json;

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

int Columns::insert(const std::string& key, std::span<const double> values, ReportColumn::Kind kind) {
  ReportColumn made = make_column(values, kind);
  const auto [entry, is_new] = ids_.try_emplace(key, static_cast<int>(columns_.size()));
  if (is_new) columns_.emplace_back();
  ReportColumn& column = columns_[static_cast<size_t>(entry->second)];
  if (!is_new && continues(made, column)) {
    made.written_at = column.written_at;
    made.lengths = std::move(column.lengths);
  } else {
    made.written_at = generation_;
  }
  made.lengths[generation_] = made.n;
  if (made.lengths.size() > kGenerationsKept) made.lengths.erase(made.lengths.begin());
  column = std::move(made);
  return entry->second;
}

uint64_t Columns::known_to(int id, uint64_t generation) const {
  const ReportColumn& column = at(id);
  const auto length = column.lengths.find(generation);
  return generation < column.written_at || length == column.lengths.end() ? 0 : length->second;
}

std::string base64_of(std::string_view bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t rest = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < rest ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) text += k <= rest ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

std::string base64_of(const ReportColumn& column, uint64_t from) {
  const size_t width = column.kind == ReportColumn::Kind::kFloat64 ? 8 : 4;
  return base64_of(std::string_view(column.bytes).substr(std::min(from * width, column.bytes.size())));
}

std::vector<size_t> thinned_indices(std::span<const double> values, size_t limit) {
  std::vector<size_t> indices;
  if (values.size() <= limit) {
    for (size_t i = 0; i < values.size(); ++i) indices.push_back(i);
    return indices;
  }
  const size_t stretches = limit / 2;
  const auto keep = [&](size_t i) {
    if (indices.empty() || indices.back() < i) indices.push_back(i);
  };
  keep(0);
  for (size_t s = 0; s < stretches; ++s) {
    const size_t from = values.size() * s / stretches, to = values.size() * (s + 1) / stretches;
    size_t low = from, high = from;  // an interval of only NaN keeps its first point
    for (size_t i = from; i < to; ++i) {
      if (std::isnan(values[i])) continue;
      if (std::isnan(values[low]) || values[i] < values[low]) low = i;
      if (std::isnan(values[high]) || values[i] > values[high]) high = i;
    }
    keep(std::min(low, high));
    keep(std::max(low, high));
  }
  keep(values.size() - 1);
  return indices;
}

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
