// A result of `dtopp evaluate --output`. It is read or skipped, never an error.
#include "dtopp/tasks/evaluation_files.h"

#include <nlohmann/json.hpp>

#include "tests/fuzz/fuzz.h"

using namespace dtopp;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto other = fuzz::write_scratch("notes.txt", "not a result");
  const std::string text = fuzz::Input(data, size).rest();
  const auto result = fuzz::write_scratch("result.json", text);
  const tasks::Evaluations evaluations = tasks::read_evaluations(fuzz::scratch());
  fuzz::require(evaluations.by_model.empty() || evaluations.skipped.empty(), "a file is read or skipped");
  fuzz::require(evaluations.skipped.size() <= 1, "a file is skipped once");
  for (const auto& [model, unused] : evaluations.by_model) {
    fuzz::require(!tasks::label_of(model).empty(), "a result has a label");
    fuzz::require(tasks::to_json(model).contains("step"), "a result has a step");
    const auto file = tasks::results_file(fuzz::scratch(), "text", model, nlohmann::json::object());
    fuzz::require(file.parent_path() == fuzz::scratch(), "a result lies in its folder");
    const nlohmann::json json = nlohmann::json::parse(text);
    if (json.contains("sweep")) continue;  // each of its budgets is a model of its own
    fuzz::require(tasks::results_file(result, "text", model, json) == result,
                  "the same result may be replaced");
  }
  fuzz::accepts([&] { tasks::results_file(result, "text", {512, 4.5, {0.5}}, nlohmann::json::object()); });
  return 0;
}
