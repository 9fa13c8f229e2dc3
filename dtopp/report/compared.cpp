#include <set>

#include "dtopp/config/config.h"
#include "dtopp/report/numbers.h"
#include "dtopp/report/sections.h"
#include "dtopp/tasks/results.h"

namespace dtopp::report {
namespace {

constexpr std::string_view kTask = "eval/";
constexpr std::string_view kAccuracy = "/accuracy";

// Returns the keys in which the first runs of the groups differ, with one column per group.
std::optional<ReportTable> configuration_table(const ReportInput& input) {
  std::vector<std::map<std::string, std::string>> configs;
  std::vector<std::string> keys;
  std::set<std::string> known;
  for (const RunGroup& group : input.groups) {
    const auto leaves = config::flatten_config(input.runs[group.runs[0]].config);
    configs.emplace_back(leaves.begin(), leaves.end());
    for (const auto& [key, value] : leaves)
      if (known.insert(key).second) keys.push_back(key);
  }
  ReportTable table{"Differences between the configurations", {"key"}};
  for (const RunGroup& group : input.groups) table.head.push_back(group.name);
  for (const std::string& key : keys) {
    if (key == "name" || key == "output" || key == "training.seed") continue;
    std::vector<ReportCell> row = {key};
    std::set<std::string> values;
    for (const auto& config : configs) {
      const auto value = config.find(key);
      row.push_back(value == config.end() ? "–" : value->second);
      values.insert(value == config.end() ? "" : value->second);
    }
    if (values.size() > 1) table.rows.push_back(std::move(row));
  }
  if (table.rows.empty()) return std::nullopt;
  return table;
}

std::string accuracy_of(const std::string& task) { return concat(kTask, task, kAccuracy); }

std::vector<std::string> tasks_of(const ReportInput& input) {
  std::set<std::string> names;
  for (const ReportRun& run : input.runs) {
    for (const auto& [metric, series] : run.history.series)
      if (metric.starts_with(kTask) && metric.ends_with(kAccuracy))
        names.insert(metric.substr(kTask.size(), metric.size() - kTask.size() - kAccuracy.size()));
    for (const auto& [model, evaluation] : run.evaluations.by_model)
      for (const auto& [name, score] : evaluation.tasks) names.insert(name);
  }
  return {names.begin(), names.end()};
}

// A column of accuracies in percent; tasks that were not measured are missing.
struct Scores {
  std::string head;
  std::map<std::string, std::string> by_task;
};

// Returns the accuracies of a run: one column per evaluated checkpoint and budget, then the last validation.
std::vector<Scores> scores_of(const ReportRun& run, const std::vector<std::string>& tasks) {
  std::vector<Scores> columns;
  for (const auto& [model, evaluation] : run.evaluations.by_model) {
    Scores column{run.name + ", " + tasks::label_of(model), {}};
    for (const auto& [task, score] : evaluation.tasks)
      column.by_task[task] =
          fixed(100 * score.accuracy, 1) + " ± " + fixed(100 * 1.959964 * score.standard_error, 1);
    if (!column.by_task.empty()) columns.push_back(std::move(column));
  }
  Scores validation;
  for (const std::string& task : tasks) {
    const std::string metric = accuracy_of(task);
    const runs::Series* series = find_series(run, metric);
    if (series == nullptr) continue;
    validation.head = run.name + ", validation at step " + whole(series->steps.back());
    validation.by_task[task] = value_text(run, metric, 1, 100);
  }
  if (!validation.by_task.empty()) columns.push_back(std::move(validation));
  return columns;
}

ReportTable benchmark_table(const ReportInput& input, const std::vector<std::string>& tasks) {
  ReportTable table{"Benchmarks, accuracy in percent", {"task"}};
  std::vector<Scores> columns;
  for (const ReportRun& run : input.runs)
    std::ranges::move(scores_of(run, tasks), std::back_inserter(columns));
  for (const Scores& column : columns) table.head.push_back(column.head);
  for (const std::string_view model : tasks::kPaperModels)
    table.head.push_back("paper: " + std::string(model));
  for (const std::string& task : tasks) {
    std::vector<ReportCell> row = {task};
    for (const Scores& column : columns) {
      const auto score = column.by_task.find(task);
      row.push_back(score == column.by_task.end() ? "–" : score->second);
    }
    const auto paper = tasks::paper_results(task);
    for (size_t model = 0; model < tasks::kPaperModels.size(); ++model)
      row.push_back(paper ? fixed(paper->at(model), 1) : "–");
    table.rows.push_back(std::move(row));
  }
  table.note =
      "With ±: from `dtopp evaluate tasks`, 95 % interval over items (1.96 standard errors). Without: from "
      "the "
      "last validation, over validation.task_limit items. Paper: " +
      std::string(tasks::kPaperSetting) + ".";
  return table;
}

ReportChart sweep_chart(RunDrawing& drawing) {
  ReportChart chart{"Accuracy at other budgets, from one checkpoint", "average over tasks"};
  chart.own_x = "active experts per token";
  for (size_t run = 0; run < drawing.input.runs.size(); ++run) {
    for (const auto& [model, evaluation] : drawing.input.runs[run].evaluations.by_model) {
      std::vector<double> x, y;
      for (const tasks::SweepPoint& point : evaluation.accuracy_sweep) {
        x.push_back(point.experts);
        y.push_back(point.accuracy);
      }
      if (!x.empty()) chart.lines.push_back(drawing.points(run, "sweep", tasks::label_of(model), x, y));
    }
  }
  return chart;
}

std::string sentence_of_study(const ReportInput& input) {
  std::string text = "Runs of the study:";
  for (const auto& [status, n] : input.study_runs)
    text += (text.back() == ':' ? " " : ", ") + whole(static_cast<int64_t>(n)) + " " + status;
  return text + ".";
}

std::string probability(const std::optional<double>& p) {
  if (!p) return "–";
  return *p < 0.001 ? "< 0.001" : fixed(*p, 3);
}

const std::vector<std::string> kHead = {"", "n", "mean", "difference from the first", "p", "p (Holm)"};
constexpr char kNote[] =
    "± is the half-width of the 95 % interval (Student's t) over seeds; differences are paired by seed. p: "
    "two-sided, for the paired difference; p (Holm) is adjusted for the number of rows. –: not defined for a "
    "single seed or equal differences.";

// Computes the rows that a study of these runs would have.
std::vector<study::StudyRow> rows_of_runs(const ReportInput& input, const std::string& name,
                                          const char* (*metric)(const ReportRun&)) {
  std::vector<study::ValuesBySeed> groups;
  for (const RunGroup& group : input.groups) {
    study::ValuesBySeed& values = groups.emplace_back();
    for (const size_t run : group.runs) {
      const ReportRun& one = input.runs[run];
      values[one.config.training.seed] = study::value_of_run(one.history, metric(one));
    }
  }
  const std::vector<study::Comparison> compared =
      study::compare(groups, std::vector<size_t>(groups.size(), 0));
  std::vector<study::StudyRow> rows;
  for (size_t i = 0; i < groups.size(); ++i)
    rows.push_back({input.groups[i].name, compared[i].values.n, {{name, compared[i]}}, {}});
  return rows;
}

ReportTable table_of(const std::string& measure, const std::vector<study::StudyRow>& rows) {
  ReportTable table{measure, kHead};
  for (const study::StudyRow& row : rows) {
    const auto found = row.measures.find(measure);
    const study::Comparison comparison = found == row.measures.end() ? study::Comparison{} : found->second;
    const study::PairedDifference difference = comparison.difference.value_or(study::PairedDifference{});
    table.rows.push_back(
        {row.name, whole(row.n),
         study::with_diverged(interval(comparison.values.mean, comparison.values.half_width, 4), comparison),
         interval(difference.mean, difference.half_width, 4), probability(difference.p),
         probability(comparison.p_holm)});
  }
  table.note = kNote;
  for (const study::StudyRow& row : rows)
    for (const std::string& note : row.notes) table.note += " " + row.name + ": " + note + ".";
  return table;
}

}  // namespace

std::optional<ReportSection> compared_section(RunDrawing& drawing) {
  const ReportInput& input = drawing.input;
  ReportSection section{"compared", "Compared"};
  section.blocks = difference_blocks(input);
  if (!input.study_runs.empty()) section.answers.push_back(sentence_of_study(input));
  std::ranges::move(curve_blocks(drawing), std::back_inserter(section.blocks));
  if (input.groups.size() > 1) {
    if (auto table = configuration_table(input)) section.blocks.push_back({std::move(*table)});
  }
  const std::vector<std::string> tasks = tasks_of(input);
  if (!tasks.empty()) section.blocks.push_back({benchmark_table(input, tasks)});
  add_chart(section.blocks, sweep_chart(drawing));
  for (const std::string& task : tasks)
    add_chart(section.blocks, {task, "accuracy", drawing.lines(accuracy_of(task), {.marks = true})});
  if (section.blocks.empty()) return std::nullopt;
  return section;
}

std::vector<ReportBlock> difference_blocks(const ReportInput& input) {
  std::vector<ReportBlock> blocks;
  std::set<std::string> measures;
  for (const study::StudyRow& row : input.study)
    for (const auto& [measure, comparison] : row.measures) measures.insert(measure);
  for (const std::string& measure : measures) blocks.push_back({table_of(measure, input.study)});
  if (!blocks.empty() || input.groups.size() < 2) return blocks;
  static constexpr std::pair<const char*, const char* (*)(const ReportRun&)> kMeasures[] = {
      {"Last validation loss", [](const ReportRun&) { return "val/loss"; }},
      {"Training loss over the last tenth", main_loss},
      {"Active experts per token over the last tenth",
       [](const ReportRun&) { return "moe/active_experts"; }}};
  for (const auto& [name, metric] : kMeasures) {
    const std::vector<study::StudyRow> rows = rows_of_runs(input, name, metric);
    const auto has_values = [&](const study::StudyRow& row) {
      return row.n > 0 || row.measures.at(name).diverged > 0;
    };
    if (std::ranges::any_of(rows, has_values)) blocks.push_back({table_of(name, rows)});
  }
  return blocks;
}

}  // namespace dtopp::report
