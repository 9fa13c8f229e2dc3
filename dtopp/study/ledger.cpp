#include "dtopp/study/ledger.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/json.h"
#include "dtopp/base/path_kind.h"

namespace dtopp::study {
namespace {

using nlohmann::ordered_json;

constexpr uint64_t kMaxLedgerBytes = 1 << 28;

// Eight significant digits, which a curve of single-precision values needs at most.
double shortened(double value) {
  const std::string text = format("%.8g", value);
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

ordered_json list_of(const std::vector<double>& values) {
  auto list = ordered_json::array();
  for (const double value : values)
    list.push_back(std::isfinite(value) ? ordered_json(shortened(value)) : ordered_json());
  return list;
}

std::vector<double> values_of(const nlohmann::json& list) {
  std::vector<double> values;
  for (const nlohmann::json& value : list)
    values.push_back(value.is_null() ? std::nan("") : value.get<double>());
  return values;
}

ordered_json curves_json(const RunCurves& curves) {
  auto json = ordered_json::object();
  for (const auto& [measure, curve] : curves) {
    json[measure]["value"] = list_of(curve.value);
    for (size_t axis = 0; axis < curve.x.size(); ++axis)
      json[measure][to_text(static_cast<CurveAxis>(axis))] = list_of(curve.x[axis]);
  }
  return json;
}

ordered_json row_json(const LedgerRow& row) {
  ordered_json json = {{"run", row.run},
                       {"variant", row.variant},
                       {"grid", ordered_json(parse_json(row.grid, row.run))},
                       {"seed", row.seed},
                       {"config_hash", row.config_hash},
                       {"data_hash", row.data_hash},
                       {"values", ordered_json::object()},
                       {"diverged", ordered_json::array()},
                       {"after", row.record.after},
                       {"seconds", shortened(row.record.seconds)},
                       {"steps", row.steps},
                       {"tokens", row.tokens},
                       {"active_flops", shortened(row.active_flops)},
                       {"made_by", row.made_by},
                       {"curves", curves_json(row.curves)}};
  for (const auto& [measure, value] : row.values) {
    json["values"][measure] = value.value ? ordered_json(*value.value) : ordered_json();
    if (value.diverged) json["diverged"].push_back(measure);
  }
  return json;
}

LedgerRow row_of(const nlohmann::json& json) {
  LedgerRow row{
      .run = json.at("run"),
      .variant = json.at("variant"),
      .grid = dump_json(json.at("grid")),
      .seed = integer_of(json.at("seed")),
      .config_hash = json.at("config_hash"),
      .data_hash = json.at("data_hash"),
      .record = {.status = RunStatus::kDone, .seconds = json.at("seconds"), .after = json.at("after")},
      .steps = integer_of(json.at("steps")),
      .tokens = integer_of(json.at("tokens")),
      .active_flops = json.at("active_flops"),
      .made_by = json.at("made_by")};
  for (const auto& [measure, value] : json.at("values").items()) {
    if (!value.is_null()) row.values[measure].value = value.get<double>();
  }
  for (const nlohmann::json& measure : json.at("diverged")) row.values[measure].diverged = true;
  for (const auto& [measure, curve] : json.at("curves").items()) {
    RunCurve& own = row.curves[measure];
    own.value = values_of(curve.at("value"));
    for (size_t axis = 0; axis < own.x.size(); ++axis) {
      own.x[axis] = values_of(curve.at(to_text(static_cast<CurveAxis>(axis))));
      if (!own.x[axis].empty() && own.x[axis].size() != own.value.size())
        throw DataError(row.run + ": " + measure + ": lists of a curve differ in length");
    }
  }
  return row;
}

bool is_same_run(const LedgerRow& a, const LedgerRow& b) {
  return a.run == b.run && a.config_hash == b.config_hash && a.data_hash == b.data_hash;
}

std::string lines_of(const std::vector<const LedgerRow*>& rows) {
  std::string text;
  for (const LedgerRow* row : rows) text += (text.empty() ? "\n" : ",\n") + dump_json(row_json(*row));
  return text;
}

}  // namespace

void require_agreement(const LedgerRow& a, const std::string& place_of_a, const LedgerRow& b,
                       const std::string& place_of_b) {
  for (const auto& [measure, value] : a.values) {
    const auto other = b.values.find(measure);
    if (other == b.values.end() || !value.value || !other->second.value) continue;
    if (*value.value != *other->second.value)
      throw DataError(format("%s: run %s: %s is %.9g, but %.9g in %s; remove one of the two",
                             place_of_a.c_str(), a.run.c_str(), measure.c_str(), *value.value,
                             *other->second.value, place_of_b.c_str()));
  }
}

Ledger::Ledger(std::filesystem::path file) : file_(std::move(file)) {
  if (path_kind(file_) == PathKind::kNothing) return;
  const nlohmann::json json = parse_json(read_file(file_, kMaxLedgerBytes), file_.string());
  try {
    for (const char* list : {"earlier", "runs"}) {
      for (const nlohmann::json& item : json.at(list)) {
        LedgerRow row = row_of(item);
        for (const LedgerRow& other : rows_) {
          if (is_same_run(row, other)) require_agreement(row, file_.string(), other, "another row");
        }
        add(std::move(row));
      }
    }
  } catch (const nlohmann::json::exception& error) {
    throw DataError(file_.string() + ": is not a ledger: " + error.what());
  }
}

const LedgerRow* Ledger::find(const std::string& run, const std::string& config_hash,
                              const std::string& data_hash) const {
  for (auto row = rows_.rbegin(); row != rows_.rend(); ++row) {
    if (row->run == run && row->config_hash == config_hash &&
        (data_hash.empty() || row->data_hash == data_hash))
      return &*row;
  }
  return nullptr;
}

void Ledger::add(LedgerRow row) {
  std::erase_if(rows_, [&](const LedgerRow& other) { return is_same_run(row, other); });
  rows_.push_back(std::move(row));
}

void Ledger::write() const {
  std::set<std::string> seen;
  std::vector<const LedgerRow*> current, earlier;
  for (auto row = rows_.rbegin(); row != rows_.rend(); ++row)
    (seen.insert(row->run).second ? current : earlier).push_back(&*row);
  std::ranges::reverse(current);
  std::ranges::reverse(earlier);
  make_directories(std::filesystem::absolute(file_).parent_path());
  write_file_atomically(
      file_, "{\"runs\": [" + lines_of(current) + "],\n\"earlier\": [" + lines_of(earlier) + "]}\n");
}

}  // namespace dtopp::study
