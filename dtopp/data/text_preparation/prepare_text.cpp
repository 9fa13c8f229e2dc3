#include "dtopp/data/text_preparation/prepare_text.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include <nlohmann/json.hpp>

#include "dtopp/base/descriptor.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/base/json_fields.h"
#include "dtopp/base/manifest.h"
#include "dtopp/data/text/unicode.h"
#include "dtopp/data/tokens/token_file.h"
#include "dtopp/data/tokens/token_folder.h"

namespace dtopp::data {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr size_t kMostValues = 1000;  // of a key that divides documents into folders

PrepareTextOptions checked(PrepareTextOptions options) {
  if (options.inputs.empty()) throw UsageError("no text files to prepare");
  if (options.num_workers < 1) throw UsageError("at least one worker is needed");
  for (const fs::path& path : options.inputs) {
    if (find_invalid_utf8(path.filename().string()))
      throw UsageError(replace_invalid_utf8(path.string()) +
                       ": its name is not UTF-8, and the output folder records names; rename it");
    if (path.extension() == ".parquet")
      throw UsageError(path.string() +
                       ": Parquet is not supported; convert it: python scripts/parquet_to_jsonl.py " +
                       path.string() + " --output FILE.jsonl.zst");
    open_regular(path);  // fails early if any file cannot be opened, before one is read in full
  }
  if (options.split_on.empty()) return options;
  if (std::ranges::all_of(options.inputs, is_json_lines))
    throw UsageError("--split-on: divides plain text, and all inputs are JSON lines");
  if (options.split_on.size() > kMaxSeparatorBytes || find_invalid_utf8(options.split_on))
    throw UsageError("--split-on: must be UTF-8 of at most " + std::to_string(kMaxSeparatorBytes) + " bytes");
  return options;
}

nlohmann::ordered_json settings_of(const TextEncoder& encoder, const PrepareTextOptions& options) {
  nlohmann::ordered_json settings = {{"tokenizer_hash", encoder.tokenizer_hash},
                                     {"vocab_size", encoder.vocab_size},
                                     {"end_of_text", encoder.end_of_text}};
  if (!options.split_on.empty()) settings["split_on"] = options.split_on;
  if (!options.only.key.empty()) settings["only"] = {{options.only.key, options.only.value}};
  return settings;
}

std::vector<InputSource> describe_inputs(const std::vector<fs::path>& inputs) {
  std::vector<InputSource> sources;
  for (const fs::path& path : inputs)
    sources.push_back({path.filename().string(), fs::file_size(path), hash_file(path)});
  return sources;
}

// Names the documents of a job in which none has text.
std::string describe_documents(const PrepareTextOptions& options) {
  std::string files = options.inputs.front().string();
  if (options.inputs.size() > 1) files += " and " + std::to_string(options.inputs.size() - 1) + " more";
  if (options.only.key.empty()) return files + ": no document";
  return files + ": no document with \"" + options.only.key + "\" " + quote_json(options.only.value);
}

bool names_a_folder(const std::string& value) {
  const auto is_safe = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  return !value.empty() && value.front() != '.' && std::ranges::all_of(value, is_safe);
}

}  // namespace

std::vector<std::string> values_in(const std::vector<fs::path>& inputs, const std::string& key) {
  std::set<std::string> values;
  DocumentParser parser;
  for (const fs::path& path : inputs) {
    if (!is_json_lines(path))
      throw UsageError("--by: " + path.string() + " is not JSON lines; its documents have no \"" + key +
                       "\"");
    LineReader lines(path);
    for (std::string line; lines.next(line);) {
      const std::string value(parser.value_of(key, path, lines.line_number(), line));
      if (line.find_first_not_of(" \t\r") == line.npos || !values.insert(value).second) continue;
      if (!names_a_folder(value))
        throw DataError(path.string() + ": line " + std::to_string(lines.line_number()) + ": \"" + key +
                        "\" is " + quote_json(value) +
                        ", which cannot name a folder; use letters, digits, _, - and .");
      if (values.size() > kMostValues)
        throw UsageError("--by: \"" + key + "\" has more than " + std::to_string(kMostValues) +
                         " values; each makes one folder");
    }
  }
  return {values.begin(), values.end()};
}

TextPreparation::TextPreparation(PrepareTextOptions options, const TextEncoder& encoder)
    : options_(checked(std::move(options))),
      encoder_(encoder),
      folder_(options_.output, token_folder_kind(), settings_of(encoder, options_),
              describe_inputs(options_.inputs)) {
  const auto unfinished = folder_.begin();
  if (const auto& complete = folder_.complete()) {
    const TokenFacts facts = read_facts(*complete, options_.output / kManifestName);
    progress_.was_complete = true;
    progress_.documents = facts.documents;
    progress_.tokens = facts.tokens;
    return;
  }
  WrittenTokens written;
  if (unfinished) {
    const TokenFacts facts = read_facts(*unfinished, options_.output);
    const JsonFields position = JsonFields(unfinished->about, options_.output.string()).object("position");
    position_ = {position.count("source"),
                 {position.count("offset"), position.count("line")},
                 position.count("input_bytes")};
    if (position_.source > options_.inputs.size()) position.fail("source", "lies beyond the list of sources");
    written = {facts.documents, facts.tokens, facts.max_token, unfinished->files};
  }
  progress_.restart_reason = folder_.restart_reason();
  progress_.resumed_documents = progress_.documents = written.documents;
  progress_.tokens = written.tokens;
  progress_.input_bytes = position_.input_bytes;
  for (const fs::path& path : options_.inputs) progress_.input_bytes_total += fs::file_size(path);
  if (!unfinished) record(written);
  writer_.emplace(options_.output, encoder.vocab_size, written);
  workers_.emplace(
      BatchReader(options_.inputs, position_, options_.batch_bytes, {.separator = options_.split_on}),
      BatchEncoder(encoder, options_.num_workers, options_.only), options_.num_workers);
  next_record_ = Clock::now() + options_.record_every;
}

bool TextPreparation::next() {
  if (!workers_) return false;
  const auto batch = workers_->next();
  if (!batch) {
    finish();
    return false;
  }
  add(*batch);
  if (Clock::now() >= next_record_) record(writer_->sync());
  return true;
}

void TextPreparation::add(const EncodedBatch& batch) {
  size_t begin = 0;
  for (const size_t end : batch.document_ends) {
    writer_->append(std::span(batch.ids).subspan(begin, end - begin));
    begin = end;
  }
  position_ = batch.end;
  progress_.input_bytes = position_.input_bytes;
  progress_.text_bytes += batch.text_bytes;
  progress_.documents += batch.document_ends.size();
  progress_.tokens += batch.ids.size();
}

// `written` comes from sync(): ids must be on the device before the record that counts them.
void TextPreparation::record(const WrittenTokens& written) {
  nlohmann::ordered_json about = to_json(written.documents, written.tokens, written.max_token);
  about["position"] = {{"source", position_.source},
                       {"offset", position_.text.offset},
                       {"line", position_.text.line},
                       {"input_bytes", position_.input_bytes}};
  folder_.record(std::move(about), written.files);
  next_record_ = Clock::now() + options_.record_every;
}

void TextPreparation::stop() {
  record(writer_->sync());
  throw Stopped(options_.output.string() + ": stopped after " + std::to_string(progress_.documents) +
                " documents; run the same command again to resume");
}

void TextPreparation::finish() {
  workers_.reset();
  const WrittenTokens written = writer_->sync();
  if (written.documents == 0) throw DataError(describe_documents(options_) + " has text; nothing to prepare");
  record(written);
  ManifestFiles files = writer_->finish();
  const std::string& json = encoder_.tokenizer_json;
  write_file_atomically(options_.output / kTokenizerName, json);
  files[kTokenizerName] = {json.size(), hash_bytes(std::as_bytes(std::span(json.data(), json.size())))};
  folder_.finish(to_json(written.documents, written.tokens, written.max_token), files);
}

}  // namespace dtopp::data
