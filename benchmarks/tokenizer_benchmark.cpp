// The C++ side of benchmarks/tokenizer.py. Usage: tokenizer_benchmark TOKENIZER DOCUMENTS
//
// Reads documents, each a little-endian uint64 length and that many bytes of UTF-8. For every line on
// standard input it encodes all documents in order on one thread and prints {"seconds", "tokens", "crc32"}
// (over all ids as int32).
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include <zlib.h>

#include "dtopp/base/byte_reader.h"
#include "dtopp/base/files.h"
#include "dtopp/data/text/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: tokenizer_benchmark TOKENIZER DOCUMENTS\n");
    return 2;
  }
  const dtopp::data::Tokenizer tokenizer = dtopp::data::Tokenizer::load(argv[1]);
  const std::string bytes = dtopp::read_file(argv[2]);
  dtopp::ByteReader reader(std::as_bytes(std::span(bytes)), argv[2]);
  std::vector<std::string_view> documents;
  while (reader.remaining() > 0) documents.push_back(reader.take_text(reader.read<uint64_t>()));

  std::string line;
  while (std::getline(std::cin, line)) {
    std::vector<std::vector<int32_t>> ids;
    ids.reserve(documents.size());
    const auto start = std::chrono::steady_clock::now();
    for (const std::string_view document : documents) ids.push_back(tokenizer.encode(document));
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    uLong crc = crc32(0, nullptr, 0);
    size_t tokens = 0;
    for (const auto& document : ids) {
      crc = crc32_z(crc, reinterpret_cast<const Bytef*>(document.data()), document.size() * sizeof(int32_t));
      tokens += document.size();
    }
    std::printf("{\"seconds\": %.6f, \"tokens\": %zu, \"crc32\": %lu}\n", elapsed.count(), tokens, crc);
    std::fflush(stdout);
  }
}
