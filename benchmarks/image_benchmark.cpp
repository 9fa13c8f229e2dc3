// The C++ side of benchmarks/prepare_images.py. Usage: image_benchmark TAR SIZE WORKERS ROUNDS OUTPUT
//
// Each round decodes all pictures of the tar from memory on WORKERS threads, then prepares the tar with as
// many workers (SIZE 0: without resizing). It prints {"decode", "prepare", "cpu_share"}: two rates in
// pictures per second, and the ratio of their processor times, which is valid even if other work shares the
// machine.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "dtopp/data/images/image_source.h"
#include "dtopp/data/images/picture.h"
#include "dtopp/data/images/prepare_images.h"

namespace {

struct Seconds {
  double wall, cpu;  // cpu covers all threads
};

Seconds seconds_of(const auto& action) {
  const auto start = std::chrono::steady_clock::now();
  const std::clock_t cpu = std::clock();
  action();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
          static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC};
}

void decode_all(const std::vector<std::string>& files, int workers) {
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (int worker = 0; worker < workers; ++worker)
    threads.emplace_back([&] {
      for (size_t i = next++; i < files.size(); i = next++)
        dtopp::data::decode_picture(std::as_bytes(std::span(files[i])), 3);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: image_benchmark TAR SIZE WORKERS ROUNDS OUTPUT\n");
    return 2;
  }
  dtopp::data::PrepareImagesOptions options;
  options.sources = {argv[1]};
  options.size = std::stoi(argv[2]);
  options.num_workers = std::stoi(argv[3]);
  options.output = argv[5];
  std::vector<std::string> files;
  const auto source = dtopp::data::open_images(argv[1]);
  while (auto sample = source->next(true)) files.push_back(std::move(*sample->picture).load());
  const auto count = static_cast<double>(files.size());
  for (int round = 0; round < std::stoi(argv[4]); ++round) {
    std::filesystem::remove_all(options.output);
    const Seconds decode = seconds_of([&] { decode_all(files, options.num_workers); });
    const Seconds prepare = seconds_of([&] {
      dtopp::data::ImagePreparation preparation(options);
      while (preparation.next()) {
      }
    });
    std::printf("{\"decode\": %.1f, \"prepare\": %.1f, \"cpu_share\": %.4f}\n", count / decode.wall,
                count / prepare.wall, decode.cpu / prepare.cpu);
  }
}
