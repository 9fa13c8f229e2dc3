// Encodes text files into one folder of token files: tokens.bin, tokens.idx, tokenizer.json, manifest.json.
//
// Each document is one sequence and ends with the end-of-text id. Documents without text are skipped. The
// bytes of the output depend only on the texts and the tokenizer, not on the number of workers or on
// interruptions. progress.json records the progress at document boundaries, and a restart resumes from the
// last record.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/data/files/ordered_workers.h"
#include "dtopp/data/files/resumable_folder.h"
#include "dtopp/data/text_preparation/text_batches.h"
#include "dtopp/data/text_preparation/token_file_writer.h"

namespace dtopp::data {

struct PrepareTextOptions {
  std::vector<std::filesystem::path> inputs;  // read in this order
  std::filesystem::path output;
  int num_workers = 1;
  // Interval between records: a restart repeats at most this much work.
  std::chrono::milliseconds record_every{5000};
  uint64_t batch_bytes = uint64_t{1} << 18;  // text per batch, the unit of work of a worker
  std::string split_on{};                    // LineOptions::separator
  DocumentFilter only{};                     // the documents to write
};

struct PrepareTextProgress {
  bool was_complete = false;  // the folder was complete already; nothing was done
  uint64_t resumed_documents = 0;
  std::string restart_reason{};  // ResumableFolder::restart_reason
  uint64_t input_bytes = 0;      // bytes read, before decompression
  uint64_t input_bytes_total = 0;
  uint64_t text_bytes = 0;  // bytes of the documents that this process has encoded
  uint64_t documents = 0;   // in the folder, with those of earlier processes; likewise `tokens`
  uint64_t tokens = 0;
};

// Returns the different strings under `key` in the JSON lines of `inputs`, in ascending order. Throws
// UsageError if an input is not JSON lines; DataError, naming file and line, if a line has no such string or
// the string cannot name a folder.
std::vector<std::string> values_in(const std::vector<std::filesystem::path>& inputs, const std::string& key);

// Prepares the text, or resumes an interrupted preparation:
//
//   TextPreparation preparation(options, encoder);
//   while (preparation.next()) show(preparation.progress());
//
// Throws: DataError if text is missing or damaged (naming file and line), if no document has text, or if the
//         output cannot be written;
//         UsageError if options or inputs are not valid, if the output folder holds other files or another
//         job, or if another process writes it; ResourceError if a thread cannot be started
class TextPreparation {
 public:
  // Checks the inputs and the folder and starts the workers. `encoder` must outlive the object.
  TextPreparation(PrepareTextOptions options, const TextEncoder& encoder);

  // Writes the next encoded batch. Returns false if the folder is complete.
  bool next();
  const PrepareTextProgress& progress() const { return progress_; }
  // Records the progress and throws Stopped. Precondition: the folder is not complete.
  [[noreturn]] void stop();

 private:
  void add(const EncodedBatch& batch);
  void record(const WrittenTokens& written);
  void finish();

  PrepareTextOptions options_;
  const TextEncoder& encoder_;
  ResumableFolder folder_;
  PrepareTextProgress progress_;
  CorpusPosition position_;
  std::optional<TokenFileWriter> writer_;
  std::optional<OrderedWorkers<BatchReader, BatchEncoder>> workers_;  // none: the folder is complete
  std::chrono::steady_clock::time_point next_record_;
};

}  // namespace dtopp::data
