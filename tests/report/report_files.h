// Folders of runs and studies, as `train` and `study` write them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/json.h"
#include "dtopp/config/run_config.h"
#include "dtopp/report/input.h"
#include "dtopp/runs/metrics.h"
#include "dtopp/study/definition.h"
#include "tests/base/scratch_directory.h"
#include "tests/config/model_sizes.h"

namespace dtopp::report {

class ReportFiles : public ::testing::Test {
 protected:
  using Json = nlohmann::json;

  static config::RunConfig config_of_seed(int64_t seed) {
    config::RunConfig config = config::sized_config();
    config.training.seed = seed;
    return config;
  }
  // Writes a run of `steps` steps. With 0 steps it has no metrics.
  static void write_run(const std::filesystem::path& run, const config::RunConfig& config, int64_t steps) {
    make_directories(run);
    write_file_atomically(run / "config.yaml", config::to_yaml(config));
    write_file_atomically(run / "study-run.json", dump_json(Json{{"config_hash", study::hash_of(config)}}));
    std::string lines;
    for (int64_t step = 1; step <= steps; ++step)
      lines += runs::to_json({step, 256 * step, 0.5 * static_cast<double>(step), {{"train/loss", 3}}}) + "\n";
    if (steps > 0) write_file_atomically(run / "metrics.jsonl", lines);
  }
  // Writes a study with one row, "a", whose curve has the mean `loss`.
  std::filesystem::path write_study(const std::string& name, const std::vector<Json>& runs, double loss = 3) {
    const std::filesystem::path study = directory_ / name;
    const Json row = {{"variant", "a"}, {"grid", Json::object()}};
    Json json = {{"runs", Json::array()}, {"table", Json::array()}};
    for (const Json& run : runs) {
      json["runs"].push_back(row);
      json["runs"].back().update(run);
    }
    json["table"].push_back(row);
    json["table"].back().update(
        {{"n", 1}, {"values", {{"train/loss", {{"mean", loss}, {"n", 1}, {"diverged", 0}}}}}});
    Json curve = row;
    curve.update({{"measure", "train/loss"},
                  {"axis", "tokens"},
                  {"n", 1},
                  {"x", {256, 512}},
                  {"mean", {loss, loss + 1}},
                  {"half_width", {nullptr, nullptr}}});
    make_directories(study);
    write_file_atomically(study / "study.json", dump_json(json));
    write_file_atomically(study / "curves.json", dump_json(Json{{"curves", {curve}}}));
    return study;
  }

  ScratchDirectory directory_;
};

}  // namespace dtopp::report
