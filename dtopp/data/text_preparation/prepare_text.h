// Text files to one folder of token files: tokens.bin, tokens.idx, tokenizer.json, manifest.json.
//
// Each document is one sequence, closed by the end-of-text id; documents without text are left out. The bytes
// depend on the texts and the tokenizer alone, not on the number of workers or on interruptions: progress is
// recorded at document boundaries (progress.json), and a restart goes on from the last record.
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
  std::function<std::vector<int32_t>(std::string_view)> encode;  // called by many threads at once
  int32_t end_of_text = 0;
  int64_t vocab_size = 0;
  std::string tokenizer_json;  // laid beside the tokens
  std::string tokenizer_hash;
};

// Refers to `tokenizer`, which must outlive it.
TextEncoder encoder_of(const Tokenizer& tokenizer);

struct PrepareTextOptions {
  std::vector<std::filesystem::path> inputs;  // read in this order
  std::filesystem::path output;
  int num_workers = 1;
  // How much a restart may have to do again, and how much text a worker takes at a time.
  std::chrono::milliseconds record_every{5000};
  uint64_t batch_bytes = uint64_t{1} << 18;
};

struct PrepareTextProgress {
  uint64_t input_bytes = 0;  // read, before decompression
  uint64_t input_bytes_total = 0;
  uint64_t text_bytes = 0;  // of the documents that this process has encoded
  uint64_t documents = 0;
  uint64_t tokens = 0;
};

struct PrepareTextObserver {
  std::function<void(const PrepareTextProgress&)> progress = [](const PrepareTextProgress&) {};
  std::function<bool()> stop_requested = [] { return false; };
};

struct PrepareTextResult {
  bool was_complete = false;  // nothing to do
  uint64_t resumed_documents = 0;
  uint64_t documents = 0;
  uint64_t tokens = 0;
};

// DataError for text that is missing or damaged (file and line) and for an output that cannot be written;
// UsageError when the output folder holds anything else or another process is writing it; Stopped after
// recording the progress.
PrepareTextResult prepare_text(const PrepareTextOptions& options, const TextEncoder& encoder,
                               const PrepareTextObserver& observer = {});

}  // namespace dtopp
