#include "dtopp/eval/scoring.h"

#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dtopp/base/files.h"
#include "tests/base/scratch_directory.h"
#include "tests/eval/tiny_model.h"
#include "tests/moe/fixed_threshold.h"

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

}  // namespace
}  // namespace dtopp::eval
