#include "dtopp/tasks/evaluation_files.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "tests/base/scratch_directory.h"

namespace dtopp::tasks {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kTasks[] = R"("tasks": {"copa": {"accuracy": 0.5, "stderr": 0.05}}, "average": 0.5})";

TEST(EvaluationFiles, are_kept_apart_by_checkpoint_budget_and_precision) {
  ScratchDirectory scratch;
  write_file_atomically(scratch / "a.json", std::string(R"({"step": 64, "p": [0.25], )") + kTasks);
  write_file_atomically(scratch / "b.json", std::string(R"({"step": 512, "target_experts": 2.5, )") + kTasks);
  write_file_atomically(scratch / "c.json", std::string(R"({"step": 512, )") + kTasks);
  write_file_atomically(scratch / "d.json", std::string(R"({"step": 512, "precision": "bf16", )") + kTasks);
  write_file_atomically(scratch / "other.json", std::string(R"({"step": "nonsense"})"));
  const Evaluations evaluations = read_evaluations(scratch.path());
  std::vector<std::string> labels;
  for (const auto& [model, evaluation] : evaluations.by_model) {
    labels.push_back(label_of(model));
    EXPECT_EQ(evaluation.tasks.at("copa").accuracy, 0.5);
  }
  EXPECT_THAT(labels, ElementsAre("step 64", "step 512", "step 512, bf16", "step 512, 2.5 experts"));
  EXPECT_TRUE(evaluations.skipped.empty());
}

TEST(EvaluationFiles, of_texts_have_the_loss_of_all_and_of_each_source) {
  ScratchDirectory scratch;
  write_file_atomically(scratch / "a.json", std::string(R"({"step": 64, "texts": ["x.txt", "y"], "nll": 3.5,
      "perplexity": 33, "bits_per_byte": 1.25, "active_experts": 4.5, "counts": "uniform", "sources": [
      {"source": "x", "nll": 3, "active_experts": 4}, {"source": "y", "nll": null}]})"));
  write_file_atomically(scratch / "b.json", std::string(R"({"step": 64, "texts": ["x.txt"], "nll": 3,
      "perplexity": 20, "by_document": true})"));
  write_file_atomically(scratch / "c.json", std::string(R"({"step": 64, "nll": 2, "perplexity": 7})"));
  const Evaluations evaluations = read_evaluations(scratch.path());
  EXPECT_TRUE(evaluations.skipped.empty());
  const std::vector<TextLoss>& texts = evaluations.by_model.at({64}).texts;
  std::vector<std::string> names;
  for (const TextLoss& text : texts) names.push_back(text.text);
  EXPECT_THAT(names, ElementsAre("x.txt + y, counts uniform", "x, counts uniform", "y, counts uniform",
                                 "x.txt, by document", "c.json"));
  EXPECT_EQ(texts[0].nll, 3.5);
  EXPECT_EQ(texts[0].bits_per_byte, 1.25);
  EXPECT_EQ(texts[0].active_experts, 4.5);
  EXPECT_EQ(texts[1].active_experts, 4);
  EXPECT_TRUE(std::isnan(texts[2].nll) && std::isnan(texts[2].bits_per_byte));
}

TEST(EvaluationFiles, of_sweeps_have_a_loss_per_text_and_budget) {
  ScratchDirectory scratch;
  write_file_atomically(scratch / "a.json",
                        std::string(R"({"step": 64, "texts": ["x", "y"], "by_document": true, "sweep": [
      {"target_experts": 4, "nll": 3, "active_experts": 4.1, "sources": [{"source": "x", "nll": 2}]},
      {"target_experts": 2, "nll": 5}]})"));
  write_file_atomically(
      scratch / "b.json",
      std::string(R"({"step": 64, "texts": ["z"], "sweep": [{"target_experts": 2, "nll": 1}]})"));
  write_file_atomically(
      scratch / "c.json",
      std::string(R"({"step": 64, "sweep": [{"target_experts": 2, "nll": 1}, {"nll": 1}]})"));
  const Evaluations evaluations = read_evaluations(scratch.path());
  EXPECT_THAT(evaluations.skipped, ElementsAre(HasSubstr("c.json: ")));
  const auto texts = [&](double target) {
    std::vector<std::pair<std::string, double>> losses;
    for (const TextLoss& text : evaluations.by_model.at({64, target}).texts)
      losses.emplace_back(text.text, text.nll);
    return losses;
  };
  EXPECT_THAT(texts(2), ElementsAre(std::pair("x + y, by document", 5), std::pair("z", 1)));
  EXPECT_THAT(texts(4), ElementsAre(std::pair("x + y, by document", 3), std::pair("x, by document", 2)));
}

TEST(EvaluationFiles, that_are_damaged_are_skipped_and_named) {
  ScratchDirectory scratch;
  write_file_atomically(scratch / "a.json", std::string(R"({"step": 64, "tasks": {"copa)"));
  write_file_atomically(scratch / "b.json", std::string("{") + kTasks);
  write_file_atomically(scratch / "c.json", std::string(R"({"step": 64, )") + kTasks);
  const Evaluations evaluations = read_evaluations(scratch.path());
  EXPECT_EQ(evaluations.by_model.size(), 1);
  EXPECT_THAT(evaluations.skipped, ElementsAre(HasSubstr("a.json: "), HasSubstr("b.json: ")));
}

const auto kNoTexts = nlohmann::json::object();

TEST(ResultsFile, is_named_for_the_checkpoint_in_a_folder_and_never_another_checkpoints) {
  ScratchDirectory scratch;
  EXPECT_EQ(results_file(scratch.path(), "tasks", {512}, kNoTexts), scratch / "tasks-step-00000512.json");
  EXPECT_EQ(results_file("new/", "text", {512, 2.5}, kNoTexts), "new/text-step-00000512-experts-2.5.json");
  EXPECT_EQ(results_file("new/", "text", {512, 0, {}, true}, kNoTexts), "new/text-step-00000512-bf16.json");
  const auto file = scratch / "r.json";
  EXPECT_EQ(results_file(file, "tasks", {512}, kNoTexts), file);
  write_file_atomically(file, std::string(R"({"step": 512, "p": [0.25]})"));
  EXPECT_EQ(results_file(file, "tasks", {512, 0, {0.25}}, kNoTexts), file);
  EXPECT_THROW(results_file(file, "tasks", {64}, kNoTexts), UsageError);
  EXPECT_THROW(results_file(file, "tasks", {512, 2}, kNoTexts), UsageError);
  EXPECT_THROW(results_file(file, "tasks", {512, 0, {}, true}, kNoTexts), UsageError);
}

TEST(ResultsFile, never_replaces_results_of_other_texts_or_options) {
  ScratchDirectory scratch;
  const auto stored = scratch / "text-a-step-00000512.json";
  write_file_atomically(stored, std::string(R"({"step": 512, "texts": ["x/a.txt"], "nll": 3})"));
  EXPECT_EQ(results_file(scratch.path(), "text-a", {512}, {{"texts", {"x/a.txt"}}}), stored);
  for (const nlohmann::json& other :
       std::vector<nlohmann::json>{kNoTexts,
                                   {{"texts", {"y/a.txt"}}},
                                   {{"texts", {"x/a.txt"}}, {"by_document", true}},
                                   {{"folder", "x"}, {"images", 3}}}) {
    EXPECT_THROW(results_file(scratch.path(), "text-a", {512}, other), UsageError);
    EXPECT_THROW(results_file(stored, "text-a", {512}, other), UsageError);
  }
}

TEST(ResultsFile, never_replaces_another_file) {
  ScratchDirectory scratch;
  const auto file = scratch / "config.yaml";
  for (const std::string content : {"model:\n  num_layers: 2\n", "{\"a\": 1}", "[]", "7"}) {
    write_file_atomically(file, content);
    EXPECT_THROW(results_file(file, "tasks", {64}, kNoTexts), UsageError);
  }
  write_file_atomically(file, std::string());
  EXPECT_EQ(results_file(file, "tasks", {64}, kNoTexts), file);
}

}  // namespace
}  // namespace dtopp::tasks
