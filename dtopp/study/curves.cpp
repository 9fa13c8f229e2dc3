#include "dtopp/study/curves.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/json.h"

namespace dtopp::study {
namespace {

constexpr std::array kAxes{CurveAxis::kTokens, CurveAxis::kActiveFlops, CurveAxis::kSeconds};

// Interpolates y at `x` linearly. Beyond the end points it returns the y of the nearest one.
double interpolate(const std::vector<double>& xs, const std::vector<double>& ys, double x) {
  const auto right = std::ranges::lower_bound(xs, x);
  if (right == xs.begin()) return ys.front();
  if (right == xs.end()) return ys.back();
  const auto i = static_cast<size_t>(right - xs.begin());
  if (*right == x) return ys[i];
  const double share = (x - xs[i - 1]) / (xs[i] - xs[i - 1]);
  return ys[i - 1] + share * (ys[i] - ys[i - 1]);
}

// Returns what a run had used after each logged step, with 0 before the first.
Points used_by_step(const runs::RunHistory& history, CurveAxis axis) {
  const runs::Series* series = &history.tokens;
  if (axis != CurveAxis::kTokens) {
    const auto found =
        history.series.find(axis == CurveAxis::kActiveFlops ? "train/active_flops" : "throughput/seconds");
    if (found == history.series.end()) return {};
    series = &found->second;
  }
  Points used{{0}, {0}};
  used.x.insert(used.x.end(), series->steps.begin(), series->steps.end());
  used.y.insert(used.y.end(), series->values.begin(), series->values.end());
  return used;
}

Points thinned(const Points& points, size_t most) {
  const size_t size = points.x.size();
  if (size <= most) return points;
  Points few;
  for (size_t block = 0; block < most; ++block) {
    const size_t begin = block * size / most;
    const size_t end = (block + 1) * size / most;
    double x = 0, y = 0;
    for (size_t i = begin; i < end; ++i) {
      x += points.x[i] / static_cast<double>(end - begin);
      y += points.y[i] / static_cast<double>(end - begin);
    }
    few.x.push_back(x);
    few.y.push_back(y);
  }
  return few;
}

std::vector<double> common_x(const std::vector<Points>& runs) {
  const auto is_first = [&](const Points& run) { return run.x == runs.front().x; };
  if (std::ranges::all_of(runs, is_first)) return runs.front().x;
  double first = runs.front().x.front();
  double last = runs.front().x.back();
  size_t count = 2;
  for (const Points& run : runs) {
    first = std::max(first, run.x.front());
    last = std::min(last, run.x.back());
    count = std::max(count, run.x.size());
  }
  std::vector<double> x;
  for (size_t i = 0; i < count && first <= last; ++i)
    x.push_back(first + (last - first) * static_cast<double>(i) / static_cast<double>(count - 1));
  return x;
}

ordered_json numbers(const Curve& curve, std::optional<double> Interval::*part) {
  auto list = ordered_json::array();
  for (const Interval& y : curve.y) list.push_back(number_json(y.*part));
  return list;
}

}  // namespace

Points points_of(const runs::RunHistory& history, const std::string& measure, CurveAxis axis) {
  const auto found = history.series.find(measure);
  const Points used = used_by_step(history, axis);
  if (found == history.series.end() || used.x.empty()) return {};
  Points points;
  for (size_t i = 0; i < found->second.steps.size(); ++i) {
    points.x.push_back(interpolate(used.x, used.y, static_cast<double>(found->second.steps[i])));
    points.y.push_back(found->second.values[i]);
  }
  return points;
}

RunCurves curves_of_run(const runs::RunHistory& history, const std::vector<std::string>& measures,
                        size_t most) {
  RunCurves curves;
  for (const std::string& measure : measures) {
    if (value_of_run(history, measure).diverged) continue;
    RunCurve curve;
    for (const CurveAxis axis : kAxes) {
      Points points = thinned(points_of(history, measure, axis), most);
      if (points.x.empty()) continue;
      curve.x.at(static_cast<size_t>(axis)) = std::move(points.x);
      curve.value = std::move(points.y);
    }
    if (!curve.value.empty()) curves[measure] = std::move(curve);
  }
  return curves;
}

Curve mean_curve(std::vector<Points> runs) {
  std::erase_if(runs, [](const Points& run) { return run.x.empty(); });
  if (runs.empty()) return {};
  for (Points& run : runs) run = thinned(run, kMostPoints);
  Curve curve{.x = common_x(runs)};
  for (const double x : curve.x) {
    std::vector<double> values(runs.size());
    std::ranges::transform(runs, values.begin(),
                           [&](const Points& run) { return interpolate(run.x, run.y, x); });
    curve.y.push_back(mean_interval(values));
  }
  return curve;
}

void write_curves(const Study& study, const std::vector<StudyRun>& runs,
                  const std::vector<RunRecord>& records, const std::map<size_t, RunCurves>& known) {
  // The curves of the runs of each row (grid point, variant). Each run's metrics are read once.
  std::map<std::pair<size_t, size_t>, std::vector<RunCurves>> rows;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (records[i].status != RunStatus::kDone) continue;
    const auto given = known.find(i);
    rows[{runs[i].point, runs[i].variant}].push_back(
        given != known.end()
            ? given->second
            : curves_of_run(runs::read_run_history(metrics_of_run(runs[i])), study.measures, kMostPoints));
  }
  ordered_json json = {{"curves", ordered_json::array()}};
  for (const auto& [position, row] : rows) {
    for (const std::string& measure : study.measures) {
      for (const CurveAxis axis : kAxes) {
        std::vector<Points> points;
        for (const RunCurves& run : row) {
          const auto own = run.find(measure);
          if (own != run.end() && !own->second.x.at(static_cast<size_t>(axis)).empty())
            points.push_back({own->second.x.at(static_cast<size_t>(axis)), own->second.value});
        }
        const Curve curve = mean_curve(std::move(points));
        if (curve.x.empty()) continue;  // no metric of the runs: the result of a command
        json["curves"].push_back({{"variant", study.variants[position.second].name},
                                  {"grid", to_json(study.points[position.first])},
                                  {"measure", measure},
                                  {"axis", enum_name(axis)},
                                  {"n", curve.y.front().n},
                                  {"x", curve.x},
                                  {"mean", numbers(curve, &Interval::mean)},
                                  {"half_width", numbers(curve, &Interval::half_width)}});
      }
    }
  }
  write_file_atomically(study.output / "curves.json", dump_json(json) + "\n");
}

}  // namespace dtopp::study
