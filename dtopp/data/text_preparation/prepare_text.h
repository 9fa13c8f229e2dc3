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
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dtopp/data/tokenizer/tokenizer.h"

namespace dtopp {

struct TextEncoder {
  std::function<std::vector<int32_t>(std::string_view)> encode;  // must be safe to call from many threads
  int32_t end_of_text = 0;
  int64_t vocab_size = 0;
  std::string tokenizer_json;  // text of the tokenizer.json that is written beside the tokens
  std::string tokenizer_hash;
};

// Returns an encoder that refers to `tokenizer`, which must outlive it.
TextEncoder encoder_of(const Tokenizer& tokenizer);

struct PrepareTextOptions {
  std::vector<std::filesystem::path> inputs;  // read in this order
  std::filesystem::path output;
  int num_workers = 1;
  // Interval between records: a restart repeats at most this much work.
  std::chrono::milliseconds record_every{5000};
  uint64_t batch_bytes = uint64_t{1} << 18;  // text per batch, the unit of work of a worker
};

struct PrepareTextProgress {
  uint64_t input_bytes = 0;  // bytes read, before decompression
  uint64_t input_bytes_total = 0;
  uint64_t text_bytes = 0;  // bytes of the documents that this process has encoded
  uint64_t documents = 0;
  uint64_t tokens = 0;
};

struct PrepareTextObserver {
  std::function<void(const PrepareTextProgress&)> progress = [](const PrepareTextProgress&) {};
  std::function<bool()> stop_requested = [] { return false; };
};

struct PrepareTextResult {
  bool was_complete = false;  // the folder was complete already; nothing was done
  uint64_t resumed_documents = 0;
  uint64_t documents = 0;
  uint64_t tokens = 0;
};

// Prepares the text, or resumes an interrupted preparation.
//
// Throws: DataError if text is missing or damaged (naming file and line) or if the output cannot be written;
//         UsageError if the output folder holds other files or another process writes it;
//         Stopped, after recording the progress, if observer.stop_requested() returns true
PrepareTextResult prepare_text(const PrepareTextOptions& options, const TextEncoder& encoder,
                               const PrepareTextObserver& observer = {});

}  // namespace dtopp
