#include "dtopp/data/text_preparation/prepare_text.h"

#include <span>
#include <utility>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/base/manifest.h"
#include "dtopp/base/temporary.h"
#include "dtopp/data/files/ordered_workers.h"
#include "dtopp/data/text/unicode.h"
#include "dtopp/data/text_preparation/prepare_folder.h"
#include "dtopp/data/text_preparation/text_batches.h"
#include "dtopp/data/tokens/token_file.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

TextJob describe_job(const PrepareTextOptions& options, const TextEncoder& encoder) {
  for (const fs::path& path : options.inputs) {
    if (find_invalid_utf8(path.filename().string()))
      throw UsageError(replace_invalid_utf8(path.string()) +
                       ": its name is not UTF-8, and the output folder records names; rename it");
    if (path.extension() == ".parquet")
      throw UsageError(path.string() +
                       ": Parquet is not supported; convert it: python scripts/parquet_to_jsonl.py " +
                       path.string() + " --output FILE.jsonl.zst");
    const MappedFile readable(path);  // fails early if any file cannot be opened, before one is read in full
  }
  TextJob job{encoder.tokenizer_hash, encoder.vocab_size, encoder.end_of_text, {}};
  for (const fs::path& path : options.inputs)
    job.sources.push_back({path.filename().string(), fs::file_size(path), hash_file(path), 0, 0});
  return job;
}

class Preparation {
 public:
  Preparation(const PrepareTextOptions& options, const TextEncoder& encoder,
              const PrepareTextObserver& observer, PrepareRecord start)
      : options_(options),
        encoder_(encoder),
        observer_(observer),
        progress_(std::move(start)),
        writer_(options.output, encoder.vocab_size, progress_.written),
        next_record_(Clock::now() + options.record_every) {
    for (const TextSource& source : progress_.job.sources) shown_.input_bytes_total += source.size;
  }

  PrepareTextResult run() {
    const uint64_t resumed = progress_.written.documents;
    show();
    encode_all();
    record();
    finish();
    return {false, resumed, progress_.written.documents, progress_.written.tokens};
  }

 private:
  void encode_all() {
    BatchReader reader(options_.inputs, progress_.position, options_.batch_bytes);
    std::vector<DocumentParser> parsers(static_cast<size_t>(options_.num_workers));
    OrderedWorkers<TextBatch, EncodedBatch> workers(
        [&] { return reader.next(); },
        [&](TextBatch batch, int worker) {
          return encode_batch(std::move(batch), encoder_, parsers[static_cast<size_t>(worker)]);
        },
        options_.num_workers);
    while (const auto batch = workers.next()) {
      add(*batch);
      if (observer_.stop_requested()) stop();
      if (Clock::now() >= next_record_) record();
    }
  }

  void add(const EncodedBatch& batch) {
    TextSource& source = progress_.job.sources[progress_.position.source];
    size_t begin = 0;
    for (const size_t end : batch.document_ends) {
      writer_.append(std::span(batch.ids).subspan(begin, end - begin));
      begin = end;
    }
    source.documents += batch.document_ends.size();
    source.tokens += batch.ids.size();
    progress_.position = batch.end;
    progress_.written.documents += batch.document_ends.size();
    progress_.written.tokens += batch.ids.size();
    shown_.text_bytes += batch.text_bytes;
    show();
  }

  void show() {
    shown_.input_bytes = progress_.position.input_bytes;
    shown_.documents = progress_.written.documents;
    shown_.tokens = progress_.written.tokens;
    observer_.progress(shown_);
  }

  // Syncs the ids first: they must be on the device before the record that counts them.
  void record() {
    progress_.written = writer_.sync();
    write_prepare_record(options_.output, progress_);
    next_record_ = Clock::now() + options_.record_every;
  }

  [[noreturn]] void stop() {
    record();
    throw Stopped(options_.output.string() + ": stopped after " +
                  std::to_string(progress_.written.documents) +
                  " documents; run the same command again to resume");
  }

  // Writes the manifest last, because it marks the folder as complete.
  void finish() {
    Manifest manifest{kTokenDataFormat, dump_json(to_json(progress_.facts())), writer_.finish()};
    const std::string& json = encoder_.tokenizer_json;
    write_file_atomically(options_.output / kTokenizerName, json);
    manifest.files[kTokenizerName] = {json.size(),
                                      hash_bytes(std::as_bytes(std::span(json.data(), json.size())))};
    write_file_atomically(options_.output / kManifestName, format_manifest(manifest));
  }

  const PrepareTextOptions& options_;
  const TextEncoder& encoder_;
  const PrepareTextObserver& observer_;
  PrepareRecord progress_;
  TokenFileWriter writer_;
  PrepareTextProgress shown_;
  Clock::time_point next_record_;
};

PrepareTextResult already_complete(const TokenFacts& facts) {
  return {true, 0, facts.documents, facts.tokens};
}

}  // namespace

TextEncoder encoder_of(const Tokenizer& tokenizer) {
  return {[&tokenizer](std::string_view text) { return tokenizer.encode(text); }, tokenizer.end_of_text(),
          tokenizer.vocab_size(), tokenizer.file_text(), tokenizer.hash()};
}

PrepareTextResult prepare_text(const PrepareTextOptions& options, const TextEncoder& encoder,
                               const PrepareTextObserver& observer) {
  if (options.inputs.empty()) throw UsageError("no text files to prepare");
  if (options.num_workers < 1) throw UsageError("at least one worker is needed");
  TextJob job = describe_job(options, encoder);
  // The first check takes no lock, so that it also accepts a finished folder on a read-only file system.
  auto complete = find_complete(options.output, job);
  if (complete && !has_prepare_record(options.output, token_folder_kind()))
    return already_complete(*complete);
  make_directories(options.output);
  const DirectoryLock lock(options.output);
  if (!complete) complete = find_complete(options.output, job);
  const PrepareTextResult result =
      complete ? already_complete(*complete)
               : Preparation(options, encoder, observer, begin_folder(options.output, std::move(job))).run();
  clear_up(options.output);
  return result;
}

}  // namespace dtopp
