// The task files, their golden vectors and their tokenizer.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dtopp/base/files.h"
#include "dtopp/data/text/tokenizer.h"
#include "dtopp/tasks/task.h"

namespace dtopp::tasks {

// $DTOPP_DATA/eval, or ../shared/eval if DTOPP_DATA is not set.
inline std::filesystem::path evaluation_data() {
  const char* data = std::getenv("DTOPP_DATA");
  const std::filesystem::path source = DTOPP_SOURCE_DIR;
  return (data == nullptr ? source / "../shared" : source / data) / "eval";
}

inline nlohmann::json read_golden(const std::string& name) {
  return nlohmann::json::parse(read_file(evaluation_data() / "golden" / name));
}

inline const data::Tokenizer& shipped_tokenizer() {
  static const data::Tokenizer tokenizer = data::Tokenizer::load(
      std::filesystem::path(DTOPP_SOURCE_DIR) / "assets/tokenizer/gpt-neox-20b.tokenizer.json");
  return tokenizer;
}

inline Task task_named(const std::string& name) { return select_tasks(name).at(0); }

// A test that needs the real task files.
class EvaluationData : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::is_directory(evaluation_data() / "golden"))
      GTEST_SKIP() << "DTOPP_DATA: " << evaluation_data().string() << " holds no golden vectors";
  }
};

// Runs once per task.
class EachTask : public EvaluationData, public testing::WithParamInterface<std::string> {};

inline std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const Task& task : all_tasks()) names.emplace_back(task.name);
  return names;
}

}  // namespace dtopp::tasks
