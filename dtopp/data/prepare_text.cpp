#include "dtopp/data/prepare_text.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/base/manifest.h"
#include "dtopp/base/temporary.h"
#include "dtopp/data/ordered_workers.h"
#include "dtopp/data/prepare_record.h"
#include "dtopp/data/text_batches.h"
#include "dtopp/data/token_file.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kTokenizerName = "tokenizer.json";

TextJob describe_job(const PrepareTextOptions& options, const TextEncoder& encoder) {
  for (const fs::path& path : options.inputs) {
    const MappedFile readable(path);  // all are looked at before one is read through
  }
  TextJob job{encoder.tokenizer_hash, encoder.vocab_size, encoder.end_of_text, {}};
  for (const fs::path& path : options.inputs)
    job.sources.push_back({path.filename().string(), fs::file_size(path), hash_file(path), 0, 0});
  return job;
}

void require_same_job(const fs::path& folder, const TextJob& there, const TextJob& now) {
  const std::string difference = job_difference(there, now);
  if (!difference.empty())
    throw UsageError(folder.string() + ": " + difference + "; choose another output folder or delete it");
}

// Nothing that is not ours is ever mixed with tokens or removed.
void require_ours(const fs::path& folder) {
  if (!fs::is_directory(folder) || fs::exists(folder / kProgressName) || fs::exists(folder / kManifestName))
    return;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    // A first record that was never finished is ours too.
    if (name == ".lock" || is_temporary_name_of(kProgressName, name)) continue;
    throw UsageError(folder.string() + ": holds other files (" + name +
                     "); choose an empty or new output folder");
  }
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

  // The ids are on the device before the record that counts them.
  void record() {
    progress_.written = writer_.sync();
    write_prepare_record(options_.output, progress_);
    next_record_ = Clock::now() + options_.record_every;
  }

  [[noreturn]] void stop() {
    record();
    throw Stopped(options_.output.string() + ": stopped after " +
                  std::to_string(progress_.written.documents) +
                  " documents; run the same command again to go on");
  }

  // The manifest comes last: with it the folder is complete.
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

// The record goes last: as long as it is there, the next run knows that something is left to remove.
void remove_progress(const fs::path& folder) {
  TokenFileWriter::remove_leftovers(folder);
  fs::remove(folder / kProgressName);
  sync_directory(folder);
}

// Begins the folder, or reads how far it is.
PrepareRecord begin(const fs::path& folder, TextJob job) {
  require_ours(folder);
  remove_leftovers(folder);
  if (auto progress = read_prepare_record(folder)) {
    require_same_job(folder, progress->job, job);
    return *std::move(progress);
  }
  PrepareRecord progress{std::move(job), {}, {}};
  write_prepare_record(folder, progress);  // before anything else, so that the folder is known as ours
  return progress;
}

std::optional<PrepareTextResult> find_complete(const fs::path& folder, const TextJob& job) {
  std::error_code unused;
  if (!fs::exists(folder / kManifestName, unused)) return std::nullopt;
  const TokenFacts facts = read_facts(read_token_manifest(folder, /*verify=*/true), folder / kManifestName);
  require_same_job(folder, facts.job, job);
  return PrepareTextResult{true, 0, facts.documents, facts.tokens};
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
  std::error_code unused;
  const bool leftovers = fs::exists(options.output / kProgressName, unused);
  // Without a lock, so that a finished folder on a read-only medium is found too.
  if (!leftovers) {
    if (const auto complete = find_complete(options.output, job)) return *complete;
  }
  require_ours(options.output);
  make_directories(options.output);
  const DirectoryLock lock(options.output);
  auto result = find_complete(options.output, job);
  if (!result) {
    PrepareRecord start = begin(options.output, std::move(job));
    result = Preparation(options, encoder, observer, std::move(start)).run();
  }
  remove_progress(options.output);
  return *result;
}

}  // namespace dtopp
