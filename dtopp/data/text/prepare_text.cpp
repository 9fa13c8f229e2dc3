#include "dtopp/data/text/prepare_text.h"

#include <set>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/base/manifest.h"
#include "dtopp/base/stop.h"
#include "dtopp/data/text/token_file.h"
#include "dtopp/data/text/unicode.h"

namespace dtopp::data {
std::vector<int64_t> encode_file(const fs::path& path, const Tokenizer& tokenizer) {
  const int32_t end_of_text = tokenizer.end_of_text();
  std::vector<int64_t> ids;
  LineReader lines(path);
  DocumentParser parser;
  for (std::string line; lines.next(line);) {
    const std::string_view document = parser.parse(path, lines.line_number(), line);
    if (document.empty()) continue;
    end_if_stopped();
    const auto encoded = at_line(path, lines.line_number(), [&] { return tokenizer.encode(document); });
    ids.insert(ids.end(), encoded.begin(), encoded.end());
    ids.push_back(end_of_text);
  }
  return ids;
}

namespace {

constexpr const char* kTokensName = "tokens.bin";

TokenType type_for(int64_t vocab_size) {
  return vocab_size <= (int64_t{1} << 16) ? TokenType::kUint16 : TokenType::kInt32;
}

// Returns the checksum that an earlier writer recorded for the file, or a text that no checksum equals.
std::string recorded_hash(const ManifestFiles& files, const char* name) {
  const auto found = files.find(name);
  return found == files.end() ? "not recorded" : found->second.xxh3_128;
}

using Clock = std::chrono::steady_clock;

constexpr size_t kMostValues = 1000;  // of a key that divides documents into folders

PrepareTextOptions checked(PrepareTextOptions options) {
  if (options.inputs.empty()) throw UsageError("no text files to prepare");
  if (options.num_workers < 1) throw UsageError("at least one worker is needed");
  for (const fs::path& path : options.inputs) {
    if (find_invalid_utf8(path.filename().string()))
      throw UsageError(replace_invalid_utf8(path.string()),
                       ": its name is not UTF-8, and the output folder records names; rename it");
    if (path.extension() == ".parquet")
      throw UsageError(path, ": Parquet is not supported; convert it: python scripts/parquet_to_jsonl.py ",
                       path, " --output FILE.jsonl.zst");
    open_regular(path);  // fails early if any file cannot be opened, before one is read in full
  }
  if (options.split_on.empty()) return options;
  if (std::ranges::all_of(options.inputs, is_json_lines))
    throw UsageError("--split-on: divides plain text, and all inputs are JSON lines");
  if (options.split_on.size() > kMaxSeparatorBytes || find_invalid_utf8(options.split_on))
    throw UsageError("--split-on: must be UTF-8 of at most ", kMaxSeparatorBytes, " bytes");
  return options;
}

ordered_json settings_of(const TextEncoder& encoder, const PrepareTextOptions& options) {
  ordered_json settings = {{"tokenizer_hash", encoder.tokenizer_hash},
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

}  // namespace

// The state after sync(): the documents that are on the device.
struct WrittenTokens {
  uint64_t documents = 0, tokens = 0;
  int64_t max_token = -1;
  ManifestFiles files;  // the files of an unfinished folder; empty before the first sync
};

// Lines of one file.
struct TextBatch {
  struct Line {
    uint64_t number;
    std::string text;
  };
  fs::path path;
  std::vector<Line> lines;
  uint64_t bytes = 0;  // of the text
  CorpusPosition end;  // the next batch begins here
};

// Reads text files as batches of lines, or of documents of plain text.
class BatchReader {
 public:
  BatchReader(const std::vector<fs::path>& files, CorpusPosition start, uint64_t batch_bytes,
              LineOptions options)
      : position_(start), batch_bytes_(batch_bytes), options_(std::move(options)) {
    for (const fs::path& path : files)
      files_.push_back({path, fs::file_size(path), fs::last_write_time(path)});
    for (size_t i = 0; i < start.source; ++i) bytes_before_ += files_[i].size;
  }

  // Returns a batch of at least batch_bytes, or less at the end of a file; nullopt after the last file.
  // Throws DataError if a file is damaged or has changed since this object was constructed, and ResourceError
  // with the file if memory is too small.
  std::optional<TextBatch> next() {
    if (position_.source == files_.size()) return std::nullopt;
    return with_file_at_work(files_[position_.source].path.string(), [this] { return read_batch(); });
  }

 private:
  struct FileState {
    fs::path path;
    uint64_t size;
    fs::file_time_type changed;
  };

  TextBatch read_batch() {
    const fs::path& path = files_[position_.source].path;
    if (!lines_) lines_.emplace(path, position_.text, options_);
    TextBatch batch;
    batch.path = path;
    bool more = true;
    while (batch.bytes < batch_bytes_) {
      std::string line;
      more = lines_->next(line);
      if (!more) break;
      batch.bytes += line.size() + 1;
      batch.lines.push_back({lines_->line_number(), std::move(line)});
    }
    position_.text = lines_->position();
    position_.input_bytes = bytes_before_ + lines_->file_bytes();
    if (!more) finish_source();
    batch.end = position_;
    return batch;
  }

  void finish_source() {
    const FileState& file = files_[position_.source];
    std::error_code gone;  // on an error, size and time are values that no file has, so the comparison fails
    if (fs::file_size(file.path, gone) != file.size || fs::last_write_time(file.path, gone) != file.changed)
      throw DataError(file.path, ": changed while it was being read; run the same command again");
    lines_.reset();
    bytes_before_ += file.size;
    position_ = {position_.source + 1, {}, bytes_before_};
  }

  std::vector<FileState> files_;
  CorpusPosition position_;
  uint64_t bytes_before_ = 0;  // total size of the files before the current one
  uint64_t batch_bytes_;
  LineOptions options_;
  std::optional<LineReader> lines_;
};

// The documents of a batch, one after another. The end-of-text id follows each document.
struct EncodedBatch {
  std::vector<int32_t> ids;
  std::vector<size_t> document_ends;  // offsets in ids
  uint64_t text_bytes = 0;
  CorpusPosition end;
};

// Encodes batches in several threads.
class BatchEncoder {
 public:
  BatchEncoder(const TextEncoder& encoder, int num_workers, const DocumentFilter& filter = {})
      : encoder_(encoder) {
    for (int worker = 0; worker < num_workers; ++worker) parsers_.emplace_back(filter);
  }
  // Parses and encodes the documents of a batch in thread `worker`. Throws DataError if a line is not valid,
  // and ResourceError with the file if memory is too small.
  EncodedBatch operator()(TextBatch batch, int worker) {
    return with_file_at_work(batch.path.string(), [&] { return encode(batch, worker); });
  }

 private:
  EncodedBatch encode(TextBatch& batch, int worker) {
    DocumentParser& parser = parsers_[static_cast<size_t>(worker)];
    EncodedBatch encoded;
    encoded.end = batch.end;
    for (TextBatch::Line& line : batch.lines) {
      const auto document = parser.parse(batch.path, line.number, line.text);
      if (document.empty()) continue;
      const auto ids = at_line(batch.path, line.number, [&] { return encoder_.encode(document); });
      encoded.ids.insert(encoded.ids.end(), ids.begin(), ids.end());
      encoded.ids.push_back(encoder_.end_of_text);
      encoded.document_ends.push_back(encoded.ids.size());
      encoded.text_bytes += document.size();
      line.text = {};  // frees the encoded line, so that a batch is not held as text and as ids at once
    }
    return encoded;
  }

  const TextEncoder& encoder_;
  std::vector<DocumentParser> parsers_;
};

// Writes documents to tokens.bin and tokens.idx in a folder. An interrupted write can be resumed.
class TokenFileWriter {
 public:
  // Resumes after `start`, the result of an earlier writer's sync(). Throws DataError if the data written
  // until then are missing or changed. Ids are stored as uint16 if `vocab_size` is at most 65536, else as
  // int32.
  TokenFileWriter(fs::path folder, int64_t vocab_size, const WrittenTokens& start)
      : folder_(std::move(folder)),
        vocab_size_(vocab_size),
        type_(type_for(vocab_size)),
        written_(start),
        tokens_(folder_ / kTokensName, start.tokens * size_of(type_),
                recorded_hash(start.files, kTokensName)),
        lengths_(folder_ / kLengthsName, start.documents * sizeof(int32_t),
                 recorded_hash(start.files, kLengthsName)) {}

  // Appends one document. Throws DataError if it has more than 2^31 - 1 ids or an id outside [0, vocab_size).
  void append(std::span<const int32_t> ids) {
    check_ids(ids);
    if (type_ == TokenType::kUint16) {
      narrow_.assign(ids.begin(), ids.end());
      tokens_.write(std::as_bytes(std::span(narrow_)));
    } else {
      tokens_.write(std::as_bytes(ids));
    }
    const auto length = static_cast<int32_t>(ids.size());
    lengths_.write(std::as_bytes(std::span(&length, 1)));
    written_.tokens += ids.size();
    ++written_.documents;
  }

  // Syncs all appended documents to the device and returns the state for a later writer's `start`.
  WrittenTokens sync() {
    tokens_.sync();
    lengths_.sync();
    written_.files = {{kTokensName, {tokens_.size(), tokens_.hash()}},
                      {kLengthsName, {lengths_.size(), lengths_.hash()}}};
    return written_;
  }

  // Syncs and writes tokens.idx. Returns the folder's files for its manifest.
  ManifestFiles finish() {
    sync();
    const fs::path index = folder_ / kIndexName;
    const fs::path temporary = temporary_sibling(index);
    const MappedFile lengths(lengths_.path());
    const std::string index_hash = write_megatron_index(temporary, type_, lengths);
    rename_durably(temporary, index);
    return {{kTokensName, written_.files.at(kTokensName)}, {kIndexName, {fs::file_size(index), index_hash}}};
  }

 private:
  void check_ids(std::span<const int32_t> ids) {
    if (ids.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
      throw DataError("a document of ", ids.size(), " tokens is too long for the format");
    if (ids.empty()) return;
    const auto [low, high] = std::minmax_element(ids.begin(), ids.end());
    if (*low < 0 || *high >= vocab_size_)
      throw DataError("token id ", *low < 0 ? *low : *high, " is outside the vocabulary of ", vocab_size_);
    written_.max_token = std::max<int64_t>(written_.max_token, *high);
  }

  fs::path folder_;
  int64_t vocab_size_;
  TokenType type_;
  WrittenTokens written_;
  AppendFile tokens_;
  AppendFile lengths_;  // one int32 per document
  std::vector<uint16_t> narrow_;
};

std::vector<std::string> values_in(const std::vector<fs::path>& inputs, const std::string& key) {
  std::set<std::string> values;
  DocumentParser parser;
  for (const fs::path& path : inputs) {
    if (!is_json_lines(path))
      throw UsageError("--by: ", path, " is not JSON lines; its documents have no \"", key, "\"");
    LineReader lines(path);
    for (std::string line; lines.next(line);) {
      const std::string value(parser.value_of(key, path, lines.line_number(), line));
      if (line.find_first_not_of(" \t\r") == line.npos || !values.insert(value).second) continue;
      if (value.empty() || value.front() == '.' || !std::ranges::all_of(value, is_plain))
        throw DataError(path, ": line ", lines.line_number(), ": \"", key, "\" is ", quote_json(value),
                        ", which cannot name a folder; use letters, digits, _, - and .");
      if (values.size() > kMostValues)
        throw UsageError("--by: \"", key, "\" has more than ", kMostValues, " values; each makes one folder");
    }
  }
  return {values.begin(), values.end()};
}

TextPreparation::~TextPreparation() = default;

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
  writer_ = std::make_unique<TokenFileWriter>(options_.output, encoder.vocab_size, written);
  workers_ = std::make_unique<OrderedWorkers<BatchReader, BatchEncoder>>(
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
  ordered_json about = to_json(written.documents, written.tokens, written.max_token);
  about["position"] = {{"source", position_.source},
                       {"offset", position_.text.offset},
                       {"line", position_.text.line},
                       {"input_bytes", position_.input_bytes}};
  folder_.record(std::move(about), written.files);
  next_record_ = Clock::now() + options_.record_every;
}

void TextPreparation::stop() {
  record(writer_->sync());
  throw Stopped(options_.output, ": stopped after ", progress_.documents,
                " documents; run the same command again to resume");
}

void TextPreparation::finish() {
  workers_.reset();
  const WrittenTokens written = writer_->sync();
  if (written.documents == 0) throw DataError(describe_documents(options_), " has text; nothing to prepare");
  record(written);
  ManifestFiles files = writer_->finish();
  const std::string& json = encoder_.tokenizer_json;
  write_file_atomically(options_.output / kTokenizerName, json);
  files[kTokenizerName] = {json.size(), hash_bytes(json)};
  folder_.finish(to_json(written.documents, written.tokens, written.max_token), files);
}

}  // namespace dtopp::data
