// Encodes text files into one folder of token files: tokens.bin, tokens.idx, tokenizer.json, manifest.json.
//
// Each document is one sequence and ends with the end-of-text id. Documents without text are skipped. The
// bytes of the output depend only on the texts and the tokenizer, not on the number of workers or on
// interruptions. progress.json records the progress at document boundaries, and a restart resumes from the
// last record.
#pragma once

#include <chrono>

#include "dtopp/data/files/ordered_workers.h"
#include "dtopp/data/files/resumable_folder.h"
#include "dtopp/data/text/text_reader.h"
#include "dtopp/data/text/tokenizer.h"

namespace dtopp::data {

// Returns the ids of all documents of the file (text_reader.h); <|endoftext|> follows each document. Throws
// DataError if the file cannot be read, StoppedEarly at a stop within a StopScope.
std::vector<int64_t> encode_file(const fs::path& path, const Tokenizer& tokenizer);

// A tokenizer, or a stand-in for one.
struct TextEncoder {
  virtual ~TextEncoder() = default;
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;  // called from many threads

  int32_t end_of_text = 0;
  int64_t vocab_size = 0;
  std::string tokenizer_json;  // text of the tokenizer.json that is written beside the tokens
  std::string tokenizer_hash;
};

// Encodes with `tokenizer`, which must outlive the object.
class TokenizerEncoder : public TextEncoder {
 public:
  explicit TokenizerEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    end_of_text = tokenizer.end_of_text();
    vocab_size = tokenizer.vocab_size();
    tokenizer_json = tokenizer.file_text();
    tokenizer_hash = tokenizer.hash();
  }
  std::vector<int32_t> encode(std::string_view text) const override { return tokenizer_.encode(text); }

 private:
  const Tokenizer& tokenizer_;
};

// A position in a list of files.
struct CorpusPosition {
  size_t source = 0;  // index of the file; at the end, the number of files
  TextPosition text;
  uint64_t input_bytes = 0;  // bytes read from all files so far, before decompression

  bool operator==(const CorpusPosition&) const = default;
};

class BatchReader;
class BatchEncoder;
class TokenFileWriter;
struct EncodedBatch;
struct WrittenTokens;

struct PrepareTextOptions {
  std::vector<fs::path> inputs;  // read in this order
  fs::path output;
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
  uint64_t text_bytes = 0;             // bytes of the documents that this process has encoded
  uint64_t documents = 0, tokens = 0;  // in the folder, with those of earlier processes
};

// Returns the different strings under `key` in the JSON lines of `inputs`, in ascending order. Throws
// UsageError if an input is not JSON lines; DataError, naming file and line, if a line has no such string or
// the string cannot name a folder.
std::vector<std::string> values_in(const std::vector<fs::path>& inputs, const std::string& key);

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
  ~TextPreparation();

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
  std::unique_ptr<TokenFileWriter> writer_;
  std::unique_ptr<OrderedWorkers<BatchReader, BatchEncoder>> workers_;  // none: the folder is complete
  std::chrono::steady_clock::time_point next_record_;
};

}  // namespace dtopp::data
