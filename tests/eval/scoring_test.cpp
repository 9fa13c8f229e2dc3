#include "dtopp/eval/scoring.h"

#include <atomic>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "tests/base/scratch_directory.h"
#include "tests/distributed/rank_threads.h"
#include "tests/eval/tiny_model.h"
#include "tests/moe/fixed_threshold.h"
#include "tests/tasks/evaluation_data.h"

namespace dtopp::eval {
namespace {

constexpr int32_t kIds = 64, kEndOfText = kIds - 1;

// A byte-level tokenizer whose ids spell these tokens. Those in angle brackets are special.
data::Tokenizer tokenizer_of(const std::vector<std::string>& tokens) {
  const ScratchDirectory scratch;
  nlohmann::json json = {{"added_tokens", nlohmann::json::array()},
                         {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                         {"decoder", {{"type", "ByteLevel"}}},
                         {"model", {{"type", "BPE"}, {"merges", nlohmann::json::array()}}}};
  for (size_t id = 0; id < tokens.size(); ++id) {
    json["model"]["vocab"][tokens[id]] = id;
    if (tokens[id].starts_with('<'))
      json["added_tokens"].push_back({{"id", id},
                                      {"content", tokens[id]},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", false},
                                      {"normalized", false},
                                      {"special", true}});
  }
  write_file_atomically(scratch / "tokenizer.json", json.dump());
  return data::Tokenizer::load(scratch / "tokenizer.json");
}

// Tokens that are different letters, with a part of a stop string before, behind or around them (Ċ is the
// byte of a newline), or special.
std::vector<std::string> parts_of_stop_strings(uint64_t seed) {
  static const std::vector<std::pair<std::string, std::string>> kAround = {
      {"", "Q"}, {":", ""}, {"", "Ċ"}, {"Ċ", ""}, {":", "Q"}, {"<", ">"}, {"", ""}};
  std::mt19937_64 random(seed);
  std::vector<std::string> tokens;
  for (int32_t id = 0; id < kEndOfText; ++id) {
    const auto& [before, behind] = kAround[random() % kAround.size()];
    tokens.push_back(before + std::string(1, static_cast<char>(id < 26 ? 'a' + id : '!' + id - 26)) + behind);
  }
  tokens[0] = "Q";
  tokens[1] = ":";
  tokens[2] = "Ċ";
  tokens.emplace_back("<|endoftext|>");
  return tokens;
}

std::vector<std::string> letters() {
  std::vector<std::string> tokens;
  for (int32_t id = 0; id < kEndOfText; ++id) tokens.push_back("a" + std::to_string(id));
  tokens.emplace_back("<|endoftext|>");
  return tokens;
}

std::vector<tasks::Scores> answers_of(const inference::InferenceModel& model,
                                      const data::Tokenizer& tokenizer) {
  tasks::TaskRequests questions{.task = tasks::task_named("svamp"), .data_sets = {}, .requests = {{}}};
  for (int32_t n = 0; n < 20; ++n) {
    tasks::Request& request = questions.requests[0].emplace_back();
    request.contexts = {{n, 3 * n % kIds, 7 * n % kIds}};
    request.max_new_tokens = 16;
  }
  distributed::SingleRank alone;
  inference::Watch watch;
  const at::NoGradGuard no_grad;
  return score_task(model, tokenizer, questions, /*batch_tokens=*/60, alone, watch)->at(0).scores;
}

// The reference decodes the whole answer after each token of one that nothing stops.
TEST(Answers, end_with_the_token_that_completes_a_stop_string) {
  inference::InferenceModel model = tiny_model(tiny_config());
  model.routing = moe::fixed_threshold(tiny_config(), 0.4);
  const std::vector<tasks::Scores> whole = answers_of(model, tokenizer_of(letters()));
  size_t stopped = 0;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const data::Tokenizer tokenizer = tokenizer_of(parts_of_stop_strings(seed));
    const std::vector<tasks::Scores> answers = answers_of(model, tokenizer);
    for (size_t n = 0; n < whole.size(); ++n) {
      std::vector<int32_t> expected;
      for (const int32_t id : whole[n].generated) {
        expected.push_back(id);
        const std::string text = tokenizer.decode_generated(expected);
        if (text.find("Q:") != text.npos || text.find("\n\n") != text.npos) break;
      }
      stopped += expected.size() < whole[n].generated.size() ? 1 : 0;
      EXPECT_EQ(answers[n].generated, expected);
      EXPECT_EQ(answers[n].generated_text, tokenizer.decode_generated(expected));
    }
  }
  EXPECT_GT(stopped, 5);
}

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Items of two choices with ids below 64; `counts` gives the items per data set.
tasks::TaskRequests items(const std::string& name, int32_t first_id, const std::vector<int32_t>& counts) {
  tasks::TaskRequests requests{.task = tasks::task_named(name), .data_sets = {}, .requests = {}};
  for (const int32_t count : counts) {
    tasks::DataSet& data = requests.data_sets.emplace_back();
    auto& of_data = requests.requests.emplace_back();
    for (int32_t item = 0; item < count; ++item) {
      data.items.emplace_back().gold = item % 2;
      tasks::Request request;
      request.index = item;
      request.contexts = {{first_id, first_id + 1, first_id + item}};
      request.continuations = {{first_id + 5}, {first_id + 6, first_id + 7}};
      of_data.push_back(request);
    }
  }
  return requests;
}

tasks::TaskRequests two_items(const std::string& name, int32_t first_id) {
  return items(name, first_id, {2});
}

// The same items, each with an answer to generate.
tasks::TaskRequests questions(const std::string& name, int32_t first_id, int32_t count) {
  tasks::TaskRequests requests = items(name, first_id, {count});
  for (tasks::Request& request : requests.requests[0]) {
    request.continuations.clear();
    request.max_new_tokens = 3 + request.index % 4;
  }
  return requests;
}

// Records messages and stops at the poll number `stop_at`, counted from 1; 0: never. Ranks share it.
class RecordingWatch final : public inference::Watch {
 public:
  void message(const std::string& text) override { messages.push_back(text); }
  bool stop_requested() override { return ++polls == stop_at; }

  std::vector<std::string> messages;
  std::atomic<int> polls = 0;
  int stop_at = 0;
};

class TaskRunTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = save_tiny_checkpoint(scratch_ / "checkpoints", tiny_config());
    checkpoint_.emplace(path_, checkpoint::CheckpointUse::kInference);
    model_.emplace(inference::load_inference_model(*checkpoint_));
  }
  tasks::KeptResults kept(const data::Tokenizer& tokenizer, const std::string& version = "1") const {
    return {scratch_ / "r.json.parts", run_key(*checkpoint_, *model_, tokenizer, version)};
  }
  std::vector<tasks::TaskResult> run(tasks::KeptResults results) {
    watch_.messages.clear();
    watch_.polls = 0;
    const at::NoGradGuard no_grad;
    distributed::SingleRank alone;
    return run_tasks(*model_, tasks::shipped_tokenizer(), tasks_, results, 64, alone, watch_);
  }

  ScratchDirectory scratch_;
  std::filesystem::path path_;
  std::optional<checkpoint::Checkpoint> checkpoint_;
  std::optional<inference::InferenceModel> model_;
  std::vector<tasks::TaskRequests> tasks_ = {two_items("copa", 3), two_items("piqa", 30)};
  RecordingWatch watch_;
};

TEST_F(TaskRunTest, goes_on_after_the_last_finished_task) {
  const auto whole = run({});
  watch_.stop_at = 2;  // copa is one batch
  EXPECT_THAT(error_of<Stopped>([&] { run(kept(tasks::shipped_tokenizer())); }),
              HasSubstr("stopped in piqa after 1 finished tasks; run the same command again to resume"));
  watch_.stop_at = 0;
  const auto resumed = run(kept(tasks::shipped_tokenizer()));
  EXPECT_THAT(watch_.messages, ElementsAre(HasSubstr("copa: finished by an earlier run")));
  EXPECT_EQ(to_json(resumed), to_json(whole));
}

// Another tokenizer gives other prompts, though as many; another program or threshold gives other scores.
TEST_F(TaskRunTest, takes_nothing_from_a_run_with_another_tokenizer_program_or_threshold) {
  run(kept(tasks::shipped_tokenizer()));
  run(kept(tasks::shipped_tokenizer()));
  EXPECT_EQ(watch_.messages.size(), 2);
  write_file_atomically(scratch_ / "other.json", tasks::shipped_tokenizer().file_text() + "\n");
  run(kept(data::Tokenizer::load(scratch_ / "other.json")));
  EXPECT_THAT(watch_.messages, IsEmpty());
  run(kept(tasks::shipped_tokenizer()));
  EXPECT_THAT(watch_.messages, IsEmpty());
  run(kept(tasks::shipped_tokenizer(), "2"));
  EXPECT_THAT(watch_.messages, IsEmpty());
  model_->routing = moe::fixed_threshold(tiny_config(), 0.5);
  run(kept(tasks::shipped_tokenizer(), "2"));
  EXPECT_THAT(watch_.messages, IsEmpty());
}

// Batches hold six items: 3, 1 and 1 batches for the three data sets, and 3 batches of questions.
TEST_F(TaskRunTest, has_the_same_results_on_any_number_of_ranks) {
  tasks_ = {items("mmlu", 3, {13, 1, 4}), questions("svamp", 20, 30)};
  std::vector<std::string> expected;
  for (const int64_t size : {1, 2, 3, 8}) {
    SCOPED_TRACE(size);
    const auto folder = scratch_ / std::to_string(size);
    std::vector<std::string> found;
    distributed::run_group(size, [&](distributed::Collectives& ranks) {
      at::set_num_threads(1);
      const at::NoGradGuard no_grad;
      const auto key = run_key(*checkpoint_, *model_, tasks::shipped_tokenizer(), "1");
      tasks::KeptResults kept = ranks.rank() == 0 ? tasks::KeptResults(folder, key) : tasks::KeptResults();
      const auto results = run_tasks(*model_, tasks::shipped_tokenizer(), tasks_, kept, 36, ranks, watch_);
      if (ranks.rank() > 0) return;
      found = {to_json(results).dump()};
      for (const tasks::TaskRequests& task : tasks_) found.push_back(kept.dump(task.task));
    });
    if (size == 1) expected = found;
    EXPECT_EQ(found, expected);
  }
}

// A threshold near 0 selects one expert per token, and a threshold near 1 selects all experts.
TEST_F(TaskRunTest, says_how_many_experts_each_task_took) {
  tasks_ = {two_items("copa", 3), questions("svamp", 20, 4)};
  for (const auto& [p, experts] :
       {std::pair{1e-6, 1.0}, {1 - 1e-9, static_cast<double>(tiny_config().model.num_experts)}}) {
    model_->routing = moe::fixed_threshold(tiny_config(), p);
    const auto results = run({});
    for (const tasks::TaskResult& result : results) EXPECT_EQ(result.experts.active_experts(), experts);
    // The items share a context of three tokens. One choice has one token, the other two; a choice's last
    // token is not computed.
    EXPECT_EQ(results[0].experts.routed, 2 * (3 + 0 + 1) * tiny_config().model.num_layers);
  }
}

TEST_F(TaskRunTest, what_rank_0_has_kept_no_rank_computes_again) {
  run(kept(tasks::shipped_tokenizer()));
  watch_.polls = 0;
  distributed::run_group(2, [&](distributed::Collectives& ranks) {
    tasks::KeptResults results = ranks.rank() == 0 ? kept(tasks::shipped_tokenizer()) : tasks::KeptResults();
    const auto taken = run_tasks(*model_, tasks::shipped_tokenizer(), tasks_, results, 64, ranks, watch_);
    EXPECT_EQ(taken.size(), ranks.rank() == 0 ? 2 : 0);
  });
  EXPECT_EQ(watch_.polls, 0);
}

TEST_F(TaskRunTest, the_key_names_all_that_a_score_depends_on) {
  const auto key = run_key(*checkpoint_, *model_, tasks::shipped_tokenizer(), "0.1.0");
  EXPECT_EQ(key["tokenizer"], tasks::shipped_tokenizer().hash());
  EXPECT_EQ(key["thresholds"], nlohmann::ordered_json({0.4}));
  EXPECT_EQ(key["precision"], "Float");
  EXPECT_EQ(key["device"], "cpu");
  EXPECT_EQ(key["version"], "0.1.0");
  EXPECT_EQ(key["checkpoint"].get<std::string>().size(), 32);
}

TEST_F(TaskRunTest, a_task_whose_name_is_taken_is_measured_all_the_same) {
  std::filesystem::create_directory(scratch_ / "r.json.parts");
  write_file_atomically(scratch_ / "r.json.parts/copa.json", "mine");
  const auto results = run(kept(tasks::shipped_tokenizer()));
  EXPECT_EQ(results.size(), 2);
  EXPECT_THAT(watch_.messages, ElementsAre(HasSubstr("copa: the finished task is not stored")));
  EXPECT_EQ(read_file(scratch_ / "r.json.parts/copa.json"), "mine");
}

TEST(BudgetResults, are_told_by_their_number_of_experts) {
  const auto result = [](double accuracy) {
    return tasks::TaskResult{.task = tasks::task_named("copa"), .accuracy = accuracy, .items = 100};
  };
  const std::vector<BudgetResult> sweep = {{2, {result(0.5)}}, {4.5, {result(0.625)}}};
  const std::vector<tasks::LongTask> left_out = {{tasks::task_named("boolq"), 1895, 512}};
  EXPECT_EQ(format_table(sweep, {}), "  target   average\n       2      50.0\n     4.5      62.5\n");
  EXPECT_THAT(format_table(sweep, left_out), testing::StartsWith("BoolQ(5)             left out"));
  const auto json = to_json(sweep, left_out);
  EXPECT_EQ(json["sweep"][1]["target_experts"], 4.5);
  EXPECT_EQ(json["sweep"][1]["tasks"]["copa"]["accuracy"], 0.625);
  EXPECT_EQ(json["sweep"][0]["left_out"]["boolq"]["longest"], 1895);
}

}  // namespace

}  // namespace dtopp::eval
