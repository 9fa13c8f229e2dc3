// Implements `dtopp tokenize`: converts text to token ids and back, line by line. Only \n ends a line; \r and
// NUL are part of it.
#include <iostream>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/console.h"
#include "dtopp/base/json.h"
#include "dtopp/data/text/tokenizer.h"

namespace dtopp::cli {
namespace {

std::string encode_line(const data::Tokenizer& tokenizer, const std::string& line) {
  std::string out = "[";
  for (const int32_t id : tokenizer.encode(line)) {
    if (out.size() > 1) out += ',';
    out += std::to_string(id);
  }
  return out + "]";
}

// Converts a JSON array of ids to one JSON string, in ASCII so that readers find no other line separators in
// it.
std::string decode_line(const data::Tokenizer& tokenizer, const std::string& line) {
  const auto array = parse_json(line, "token ids");
  if (!array.is_array()) throw DataError("must be a JSON array of token ids");
  std::vector<int32_t> ids;
  for (const auto& id : array) {
    if (!id.is_number_integer()) throw DataError("token ids must be integers");
    // Unsigned numbers beyond int64 wrap to negative ones, which are refused as well.
    const auto value = id.get<int64_t>();
    if (value < 0 || value >= tokenizer.vocab_size())
      throw DataError("token id ", dump_json(id), " does not exist; the tokenizer has ",
                      tokenizer.vocab_size(), " ids");
    ids.push_back(static_cast<int32_t>(value));
  }
  return quote_json(tokenizer.decode(ids), /*ascii=*/true);
}

void tokenize(const std::string& tokenizer_path, bool decode) {
  const data::Tokenizer tokenizer = data::Tokenizer::load(tokenizer_path);
  std::ios::sync_with_stdio(false);
  std::string line;
  for (uint64_t number = 1; std::getline(std::cin, line, '\n'); ++number) {
    std::string result;
    try {
      result = decode ? decode_line(tokenizer, line) : encode_line(tokenizer, line);
    } catch (const DataError& error) {
      throw DataError("standard input: line ", number, ": ", error.what());
    }
    std::printf("%s\n", result.c_str());
    // Flush when no more input is waiting: an interactive caller gets each answer, and files stay buffered.
    // Also flush after an error, so that a closed output ends the program.
    if (std::cin.rdbuf()->in_avail() <= 0 || std::ferror(stdout) != 0) flush_standard_output();
  }
  if (std::cin.bad()) throw DataError("standard input: cannot be read");
}

}  // namespace

void add_tokenize(CLI::App& app) {
  struct Options {
    std::string tokenizer;
    bool decode = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "tokenize", "Convert each line of standard input to a JSON array of token ids, or back with --decode");
  command->add_option("--tokenizer", options->tokenizer, "tokenizer.json file (byte-level BPE)")->required();
  command->add_flag("--decode", options->decode, "convert each line, an array of ids, to a JSON string");
  command->callback([options] { tokenize(options->tokenizer, options->decode); });
}

}  // namespace dtopp::cli
