#include "dtopp/study/tables.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "dtopp/base/format.h"

namespace dtopp::study {
namespace {

constexpr double kLeastShownP = 0.001;

using Line = std::vector<std::string>;

std::string exact(const std::optional<double>& value) {
  if (!value) return "";
  std::array<char, 32> buffer{};
  return {buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), *value).ptr};
}

Line keys_of(const Study& study) {
  Line keys;
  for (const Setting& setting : study.points.front()) keys.push_back(setting.key);
  return keys;
}

Line head(const Study& study) {
  Line line = {"variant"};
  for (const std::string& key : keys_of(study)) line.push_back(key);
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

std::string escape_csv(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out.append(c == '"' ? "\"\"" : std::string(1, c));
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
    } else if (std::string_view("&%$#_{}").find(c) != std::string_view::npos) {
      out.append("\\") += c;
    } else if (c == '~' || c == '^') {
      out.append("\\") += c;
      out += "{}";
    } else if (c == '\\') {
      out += "\\textbackslash{}";
    } else if (c == '<' || c == '>') {
      out.append("$") += c;
      out += '$';
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string p_text(const std::optional<double>& p) {
  if (!p) return "";
  return *p < kLeastShownP ? "< 0.001" : format("%.3f", *p);
}

std::string markdown_cells(const std::vector<std::string>& cells) {
  return joined(cells, " | ", escape_markdown);
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
  const size_t left = keys_of(study).size() + 1;  // left-aligned columns
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    text += "| " + markdown_cells(lines[i]) + " |\n";
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
  const size_t left = keys_of(study).size() + 1;
  std::string text = "\\begin{tabular}{" + std::string(left, 'l') + std::string(lines[0].size() - left, 'r') +
                     "}\n\\hline\n";
  for (size_t i = 0; i < lines.size(); ++i)
    text += joined(lines[i], " & ", escape_latex) + " \\\\\n" + (i == 0 ? "\\hline\n" : "");
  return text + "\\hline\n\\end{tabular}\n";
}

}  // namespace dtopp::study
