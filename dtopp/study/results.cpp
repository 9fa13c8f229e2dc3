#include "dtopp/study/results.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/json.h"

namespace dtopp::study {
namespace {

constexpr double kLeastShownP = 0.001;

using Line = std::vector<std::string>;

std::string joined(const Line& line, const std::string& separator,
                   std::string (*escape)(const std::string&)) {
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) text += (i > 0 ? separator : "") + escape(line[i]);
  return text;
}

std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return text;
}

std::string escape_markdown(const std::string& text) {
  std::string out;
  for (const char c : one_line(text)) {
    if (std::string_view("\\|`*_<>[]").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// Returns a p-value with three decimals, "< 0.001" below them, or nothing without a value.
std::string p_text(const std::optional<double>& p) {
  if (!p) return "";
  return *p < kLeastShownP ? "< 0.001" : format("%.3f", *p);
}

constexpr double kLevel = 0.05;

// The values of one measure by variant and seed.
using ValuesByVariant = std::map<std::string, std::map<int64_t, double>>;

ValuesByVariant values_by_variant(const Study& study, const std::vector<StudyRun>& runs,
                                  const std::vector<RunRecord>& records, const RunValues& values,
                                  const std::string& measure) {
  const auto column =
      static_cast<size_t>(std::ranges::find(study.measures, measure) - study.measures.begin());
  ValuesByVariant all;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (records[i].status != RunStatus::kDone) continue;
    const std::optional<double>& value = values[i].at(column).value;
    if (value) all[study.variants[runs[i].variant].name][runs[i].seed] = *value;
  }
  return all;
}

// The values of several variants at the seeds that all of them have.
std::vector<std::vector<double>> at_common_seeds(const ValuesByVariant& values,
                                                 const std::vector<std::string>& variants) {
  std::vector<std::vector<double>> columns(variants.size());
  const auto first = values.find(variants.front());
  if (first == values.end()) return columns;
  for (const auto& [seed, value] : first->second) {
    std::vector<double> row;
    for (const std::string& variant : variants) {
      const auto own = values.find(variant);
      if (own == values.end() || !own->second.contains(seed)) break;
      row.push_back(own->second.at(seed));
    }
    if (row.size() < variants.size()) continue;
    for (size_t i = 0; i < row.size(); ++i) columns[i].push_back(row[i]);
  }
  return columns;
}

std::vector<double> minus(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> differences(a.size());
  std::ranges::transform(a, b, differences.begin(), std::minus<>{});
  return differences;
}

ComparisonResult compute(const PlannedComparison& planned, const ValuesByVariant& values) {
  ComparisonResult result{.planned = planned};
  std::vector<std::string> variants = {planned.of, planned.less};
  if (planned.is_ratio()) variants.insert(variants.end(), {planned.over.of, planned.over.less});
  const auto columns = at_common_seeds(values, variants);
  const size_t n = columns[0].size();
  if (n == 0) result.note = "no seed is complete";
  if (n == 1) result.note = "a single pair has no interval";
  if (planned.is_ratio()) {
    result.ratio = paired_ratio(minus(columns[0], columns[1]), minus(columns[2], columns[3]));
    if (n > 1 && !result.ratio.low)
      result.note = "unbounded: " + planned.over.of + " minus " + planned.over.less + " may be 0";
    return result;
  }
  result.difference = paired_difference(columns[0], columns[1]);
  const PairedDifference& difference = result.difference;
  if (n > 1 && !difference.p) result.note = "all differences are equal";
  if (difference.p)
    result.t = *difference.mean / (*difference.standard_deviation / std::sqrt(static_cast<double>(n)));
  return result;
}

std::vector<std::string> verdicts_of(const ComparisonResult& result) {
  const PairedDifference& difference = result.difference;
  if (!difference.mean || !difference.half_width) return {};
  const PlannedComparison& planned = result.planned;
  const double low = *difference.mean - *difference.half_width;
  const double high = *difference.mean + *difference.half_width;
  const bool is_significant = result.p_holm && *result.p_holm <= kLevel;
  std::vector<std::string> verdicts;
  if (low > 0 && is_significant) verdicts.push_back(planned.less + " ahead of " + planned.of);
  if (high < 0 && is_significant) verdicts.push_back(planned.less + " behind " + planned.of);
  if (planned.margin > 0 && -planned.margin < low && high < planned.margin)
    verdicts.push_back("equivalent within " + format("%g", planned.margin));
  if (planned.excluded > 0 && high < planned.excluded)
    verdicts.push_back("a lead of " + format("%g", planned.excluded) + " is excluded");
  if (verdicts.empty()) verdicts.emplace_back("inconclusive");
  return verdicts;
}

std::string joined_verdicts(const ComparisonResult& result) {
  std::vector<std::string> parts = result.verdicts;
  if (!result.note.empty()) parts.push_back(result.note);
  return dtopp::joined(parts, "; ");
}

std::string ratio_text(const RatioInterval& ratio) {
  if (!ratio.ratio) return "";
  std::string text = format("%.3g", *ratio.ratio);
  if (ratio.low) text += format(" [%.3g, %.3g]", *ratio.low, *ratio.high);
  return text;
}

// "top-k minus dtop-p", or "(top-k minus dtop-p) / (dense minus top-k)"
std::string formula_of(const PlannedComparison& planned) {
  std::string difference = planned.of + " minus " + planned.less;
  if (!planned.is_ratio()) return difference;
  return "(" + difference + ") / (" + planned.over.of + " minus " + planned.over.less + ")";
}

// `values`: by measure, then row.
std::vector<std::string> notes_of(const std::vector<TableRow>& rows, size_t index,
                                  const std::vector<std::string>& measures,
                                  const std::vector<std::vector<ValuesBySeed>>& values) {
  const TableRow& row = rows[index];
  if (row.n == 0) return {"no run is done"};
  std::vector<std::string> notes;
  for (size_t measure = 0; measure < measures.size(); ++measure) {
    const std::string& name = measures[measure];
    const ValuesBySeed& by_seed = values[measure][index];
    if (std::ranges::none_of(by_seed, [](const auto& of) { return of.second.diverged || of.second.value; })) {
      notes.push_back(name + " is missing in all seeds");
      continue;
    }
    for (const auto& [seed, run] : by_seed) {
      if (run.diverged)
        notes.push_back(name + " diverged in seed " + std::to_string(seed));
      else if (!run.value)
        notes.push_back(name + " is missing in seed " + std::to_string(seed));
    }
    const auto& [mean, diverged, difference, p_holm] = row.measures[measure];
    if (mean.n == 1 && row.n > 1) notes.push_back(name + ": a single value has no interval");
    if (!difference) continue;
    if (difference->n == 0) notes.push_back(name + ": no seed in common with the baseline");
    if (difference->n == 1) notes.push_back(name + ": a single pair has no interval");
    if (difference->half_width == 0.0)
      notes.push_back(name + ": all differences are equal, so p is undefined");
  }
  if (row.n == 1) notes.push_back("a single run has no interval");
  return notes;
}

// The number at `key` of a command's result. Null is a number that was not finite.
RunValue value_in(const fs::path& result, const std::string& key) {
  try {
    const nlohmann::json json = parse_json(read_file(result), result.string());
    const nlohmann::json& value = json.at(nlohmann::json::json_pointer("/" + key));
    if (value.is_null()) return {.diverged = true};
    return {value.get<double>()};
  } catch (const nlohmann::json::exception&) {
  } catch (const DataError&) {  // the command wrote no result
  }
  return {};
}

RunValue value_of(const Study& study, const StudyRun& run, const RunRecord& record,
                  const runs::RunHistory& history, const std::string& measure) {
  for (size_t i = 0; i < study.after.size(); ++i) {
    const std::string prefix = study.after[i].name + "/";
    if (!measure.starts_with(prefix)) continue;
    if (i >= commands_done(record, study.after)) return {};
    return value_in(result_of(run, study.after[i]), measure.substr(prefix.size()));
  }
  return value_of_run(history, measure);
}

std::string exact(const std::optional<double>& value) {
  if (!value) return "";
  std::array<char, 32> buffer{};
  return {buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), *value).ptr};
}

Line head(const Study& study) {
  Line line = {"variant"};
  for (const Setting& setting : study.points.front()) line.push_back(setting.key);
  line.push_back("n");
  return line;
}

Line row_head(const Study& study, const TableRow& row) {
  Line line = {study.variants[row.variant].name};
  for (const Setting& setting : study.points[row.point]) line.push_back(to_text(setting.value));
  line.push_back(std::to_string(row.n));
  return line;
}

bool compares(const Study& study) { return study.variants.size() > 1; }

// Returns the lines of the Markdown and LaTeX tables: the header and one line per row.
std::vector<Line> text_lines(const Study& study, const std::vector<TableRow>& rows) {
  std::vector<Line> lines = {head(study)};
  for (const std::string& measure : study.measures) {
    lines[0].push_back(measure);
    if (!compares(study)) continue;
    lines[0].push_back("minus " + study.variants.front().name);
    lines[0].push_back("p (Holm)");
  }
  for (const TableRow& row : rows) {
    Line& line = lines.emplace_back(row_head(study, row));
    for (size_t i = 0; i < study.measures.size(); ++i) {
      const Comparison& comparison = row.measures[i];
      line.push_back(
          with_diverged(with_half_width(comparison.values.mean, comparison.values.half_width), comparison));
      if (!compares(study)) continue;
      const PairedDifference difference = comparison.difference.value_or(PairedDifference{});
      line.push_back(with_half_width(difference.mean, difference.half_width, true));
      line.push_back(p_text(comparison.p_holm));
    }
  }
  return lines;
}

std::string escape_csv(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out.append(c == '"' ? 2 : 1, c);
  return out + "\"";
}

std::string escape_latex(const std::string& text) {
  std::string out;
  const std::string line = one_line(text);
  for (size_t i = 0; i < line.size(); ++i) {
    constexpr std::string_view kPlusMinus = "±";
    const char c = line[i];
    if (line.compare(i, kPlusMinus.size(), kPlusMinus) == 0) {
      out += "$\\pm$";
      i += kPlusMinus.size() - 1;
    } else if (std::string_view("&%$#_{}~^").find(c) != std::string_view::npos) {
      out.append("\\") += c;
      if (c == '~' || c == '^') out += "{}";
    } else if (c == '\\') {
      out += "\\textbackslash{}";
    } else if (c == '<' || c == '>') {
      out += {'$', c, '$'};
    } else {
      out += c;
    }
  }
  return out;
}

ordered_json run_json(const Study& study, const StudyRun& run, const RunRecord& record,
                      const std::vector<RunValue>& values) {
  ordered_json json = {{"variant", study.variants[run.variant].name},
                       {"grid", to_json(study.points[run.point])},
                       {"seed", run.seed},
                       {"path", run.directory.string()},
                       {"status", enum_name(record.status)},
                       {"values", ordered_json::object()},
                       {"diverged", ordered_json::array()},
                       {"config_hash", run.hash},
                       {"seconds", record.seconds}};
  for (size_t i = 0; i < values.size(); ++i) {
    json["values"][study.measures[i]] = number_json(values[i].value);
    if (values[i].diverged) json["diverged"].push_back(study.measures[i]);
  }
  if (!record.cause.empty()) json["cause"] = record.cause;
  return json;
}

ordered_json row_json(const Study& study, const TableRow& row) {
  ordered_json json = {{"variant", study.variants[row.variant].name},
                       {"grid", to_json(study.points[row.point])},
                       {"n", row.n},
                       {"values", ordered_json::object()},
                       {"difference", nullptr},
                       {"notes", row.notes}};
  for (size_t i = 0; i < row.measures.size(); ++i) {
    const Comparison& comparison = row.measures[i];
    json["values"][study.measures[i]] = {{"mean", number_json(comparison.values.mean)},
                                         {"half_width", number_json(comparison.values.half_width)},
                                         {"n", comparison.values.n},
                                         {"diverged", comparison.diverged}};
    if (!comparison.difference) continue;
    json["difference"][study.measures[i]] = {{"mean", number_json(comparison.difference->mean)},
                                             {"half_width", number_json(comparison.difference->half_width)},
                                             {"p", number_json(comparison.difference->p)},
                                             {"p_holm", number_json(comparison.p_holm)},
                                             {"n", comparison.difference->n}};
  }
  return json;
}

ordered_json comparison_json(const ComparisonResult& result) {
  const PlannedComparison& planned = result.planned;
  ordered_json json = {
      {"name", planned.name}, {"of", planned.of}, {"less", planned.less}, {"measure", planned.measure}};
  if (planned.is_ratio()) {
    json["over"] = {{"of", planned.over.of}, {"less", planned.over.less}};
    json["n"] = result.ratio.n;
    json["ratio"] = number_json(result.ratio.ratio);
    json["low"] = number_json(result.ratio.low);
    json["high"] = number_json(result.ratio.high);
  } else {
    const PairedDifference& difference = result.difference;
    json["n"] = difference.n;
    json["mean"] = number_json(difference.mean);
    json["half_width"] = number_json(difference.half_width);
    json["std"] = number_json(difference.standard_deviation);
    json["t"] = number_json(result.t);
    json["p"] = number_json(difference.p);
    json["p_holm"] = number_json(result.p_holm);
  }
  json["verdicts"] = result.verdicts;
  json["note"] = result.note;
  return json;
}

}  // namespace

std::vector<ComparisonResult> compute_comparisons(const Study& study, const std::vector<StudyRun>& runs,
                                                  const std::vector<RunRecord>& records,
                                                  const RunValues& values) {
  std::vector<ComparisonResult> results;
  for (const PlannedComparison& planned : study.compare)
    results.push_back(compute(planned, values_by_variant(study, runs, records, values, planned.measure)));
  return results;
}

void decide(std::vector<ComparisonResult>& results) {
  std::map<std::string, std::vector<ComparisonResult*>> families;
  for (ComparisonResult& result : results)
    if (!result.planned.family.empty()) families[result.planned.family].push_back(&result);
  for (const auto& [family, members] : families) {
    std::vector<double> p;
    for (const ComparisonResult* result : members) p.push_back(result->difference.p.value_or(1));
    const std::vector<double> adjusted = holm(p);
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i]->difference.p) members[i]->p_holm = adjusted[i];
      members[i]->verdicts = verdicts_of(*members[i]);
    }
  }
}

std::string comparison_table(const std::vector<ComparisonResult>& results) {
  if (results.empty()) return "";
  std::string text =
      "| comparison | of | measure | n | result | std | t | p | p (Holm) | verdict |\n"
      "|---|---|---|---:|---:|---:|---:|---:|---:|---|\n";
  for (const ComparisonResult& result : results) {
    const PlannedComparison& planned = result.planned;
    const PairedDifference& difference = result.difference;
    const auto number = [](const std::optional<double>& value, const char* pattern) {
      return value ? format(pattern, *value) : std::string();
    };
    const std::vector<std::string> cells = {
        planned.name,
        formula_of(planned),
        planned.measure,
        std::to_string(planned.is_ratio() ? result.ratio.n : difference.n),
        planned.is_ratio() ? ratio_text(result.ratio)
                           : with_half_width(difference.mean, difference.half_width, true),
        number(difference.standard_deviation, "%.2g"),
        number(result.t, "%.2f"),
        p_text(difference.p),
        p_text(result.p_holm),
        joined_verdicts(result)};
    text += "| " + joined(cells, " | ", escape_markdown) + " |\n";
  }
  return text +
         "\nDifferences are taken seed by seed, ± the half-width of the 95 % interval; brackets: Fieller's "
         "interval. p (Holm) is adjusted within the family.\n";
}

std::string blind_text(const std::vector<ComparisonResult>& results) {
  std::string text;
  for (const ComparisonResult& result : results) {
    if (result.planned.is_ratio()) continue;
    const PairedDifference& difference = result.difference;
    text += result.planned.name + ": n " + std::to_string(difference.n);
    if (difference.standard_deviation)
      text += format(", standard deviation of the paired differences %.4g", *difference.standard_deviation);
    text += "\n";
  }
  return text;
}

std::vector<TableRow> make_rows(const Study& study, const std::vector<StudyRun>& runs,
                                const std::vector<RunRecord>& records, const RunValues& values) {
  const size_t variants = study.variants.size();
  std::vector<TableRow> rows;
  std::vector<size_t> baselines;
  for (size_t i = 0; i < variants * study.points.size(); ++i) {
    rows.push_back({.variant = i % variants, .point = i / variants});
    baselines.push_back(i - i % variants);
  }
  std::vector<std::vector<ValuesBySeed>> by_measure(study.measures.size(),
                                                    std::vector<ValuesBySeed>(rows.size()));
  for (size_t i = 0; i < runs.size(); ++i) {
    if (records[i].status != RunStatus::kDone) continue;
    const size_t row = runs[i].point * variants + runs[i].variant;
    ++rows[row].n;
    for (size_t measure = 0; measure < study.measures.size(); ++measure)
      by_measure[measure][row].emplace(runs[i].seed, values[i][measure]);
  }
  for (const std::vector<ValuesBySeed>& groups : by_measure) {
    const std::vector<Comparison> compared = compare(groups, baselines);
    for (size_t row = 0; row < rows.size(); ++row) rows[row].measures.push_back(compared[row]);
  }
  for (size_t row = 0; row < rows.size(); ++row)
    rows[row].notes = notes_of(rows, row, study.measures, by_measure);
  return rows;
}

StudyResults ResultsReader::read(const std::vector<RunRecord>& records,
                                 const std::vector<ComparisonResult>& together) {
  StudyResults results;
  for (size_t i = 0; i < runs_.size(); ++i) {
    if (records[i].status != RunStatus::kDone) {
      results.values.emplace_back(study_.measures.size());
      continue;
    }
    const size_t commands = commands_done(records[i], study_.after);
    auto& [known_commands, values] = known_[i];
    if (values.empty() || known_commands != commands) {
      const runs::RunHistory history = runs::read_run_history(metrics_of_run(runs_[i]));
      values.clear();
      for (const std::string& measure : study_.measures)
        values.push_back(value_of(study_, runs_[i], records[i], history, measure));
      known_commands = commands;
    }
    results.values.push_back(values);
  }
  results.rows = make_rows(study_, runs_, records, results.values);
  results.comparisons = compute_comparisons(study_, runs_, records, results.values);
  results.comparisons.insert(results.comparisons.end(), together.begin(), together.end());
  decide(results.comparisons);
  return results;
}

std::string with_half_width(const std::optional<double>& mean, const std::optional<double>& half_width,
                            bool with_sign) {
  if (!mean) return "";
  const double width = half_width.value_or(0);
  if (width == 0) {
    const std::string text = format(with_sign ? "%+.6g" : "%.6g", *mean);
    return half_width ? text + " ± 0" : text;
  }
  const int decimals = std::clamp(1 - static_cast<int>(std::floor(std::log10(width))), 0, 15);
  const std::string text = format(with_sign ? "%+.*f" : "%.*f", decimals, *mean);
  return text + " ± " + format("%.*f", decimals, width);
}

std::string markdown_table(const Study& study, const std::vector<TableRow>& rows) {
  const std::vector<Line> lines = text_lines(study, rows);
  const size_t left = study.points.front().size() + 1;  // left-aligned columns
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    text += "| " + joined(lines[i], " | ", escape_markdown) + " |\n";
    if (i > 0) continue;
    for (size_t column = 0; column < lines[0].size(); ++column) text += column < left ? "|---" : "|---:";
    text += "|\n";
  }
  text += "\nMean ± half-width of its 95 % confidence interval (Student's t) over n runs, one per seed.";
  if (compares(study))
    text += " Differences are taken seed by seed; p is of the paired t test, adjusted (Holm) for all rows.";
  text += "\n";
  std::string notes;
  for (const TableRow& row : rows) {
    Line name = row_head(study, row);
    name.pop_back();
    if (!row.notes.empty())
      notes +=
          "- " + joined(name, ", ", escape_markdown) + ": " + joined(row.notes, "; ", escape_markdown) + "\n";
  }
  return notes.empty() ? text : text + "\n" + notes;
}

std::string csv_table(const Study& study, const std::vector<TableRow>& rows) {
  Line line = head(study);
  for (const std::string& measure : study.measures) {
    for (const char* column : {"mean", "half_width", "difference", "difference_half_width", "difference_p",
                               "difference_p_holm", "diverged"})
      line.push_back(measure + " " + column);
  }
  std::string text = joined(line, ",", escape_csv) + "\n";
  for (const TableRow& row : rows) {
    line = row_head(study, row);
    for (size_t i = 0; i < study.measures.size(); ++i) {
      const Comparison& comparison = row.measures[i];
      const PairedDifference difference = comparison.difference.value_or(PairedDifference{});
      for (const auto& value : {comparison.values.mean, comparison.values.half_width, difference.mean,
                                difference.half_width, difference.p, comparison.p_holm})
        line.push_back(exact(value));
      line.push_back(std::to_string(comparison.diverged));
    }
    text += joined(line, ",", escape_csv) + "\n";
  }
  return text;
}

std::string latex_table(const Study& study, const std::vector<TableRow>& rows) {
  const std::vector<Line> lines = text_lines(study, rows);
  const size_t left = study.points.front().size() + 1;
  std::string text = "\\begin{tabular}{" + std::string(left, 'l') + std::string(lines[0].size() - left, 'r') +
                     "}\n\\hline\n";
  for (size_t i = 0; i < lines.size(); ++i)
    text += joined(lines[i], " & ", escape_latex) + " \\\\\n" + (i == 0 ? "\\hline\n" : "");
  return text + "\\hline\n\\end{tabular}\n";
}

std::string markdown_results(const Study& study, const StudyResults& results) {
  const std::string table = markdown_table(study, results.rows);
  const std::string comparisons = comparison_table(results.comparisons);
  return comparisons.empty() ? table : table + "\n" + comparisons;
}

std::string study_json(const Study& study, const std::vector<StudyRun>& runs,
                       const std::vector<RunRecord>& records, const StudyResults& results) {
  ordered_json json = {{"study", study.file.string()}, {"measure", study.measures}};
  json["baseline"] = study.variants.front().name;
  json["runs"] = ordered_json::array();
  for (size_t i = 0; i < runs.size(); ++i)
    json["runs"].push_back(run_json(study, runs[i], records[i], results.values[i]));
  json["table"] = ordered_json::array();
  for (const TableRow& row : results.rows) json["table"].push_back(row_json(study, row));
  json["compare"] = ordered_json::array();
  for (const ComparisonResult& result : results.comparisons)
    json["compare"].push_back(comparison_json(result));
  return dump_json(json, 1) + "\n";
}

void write_result_files(const Study& study, const std::vector<StudyRun>& runs,
                        const std::vector<RunRecord>& records, const StudyResults& results) {
  const auto write = [&](const char* name, const std::string& text) {
    write_file_atomically(study.output / name, text);
  };
  write("study.json", study_json(study, runs, records, results));
  write("table.md", markdown_results(study, results));
  write("table.csv", csv_table(study, results.rows));
  write("table.tex", latex_table(study, results.rows));
}

}  // namespace dtopp::study
