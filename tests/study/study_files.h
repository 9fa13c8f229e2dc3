// Writes a study of a tiny configuration to files.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/runs/metrics.h"
#include "dtopp/study/definition.h"
#include "tests/base/scratch_directory.h"

namespace dtopp::study {

class StudyFiles : public ::testing::Test {
 protected:
  // The lines that every study needs. Its runs have seed 7 and 12 steps.
  static inline const std::string kHead = "base: base.yaml\nmeasure: [train/loss]\noutput: out\n";

  StudyFiles() {
    write_file_atomically(
        directory_ / "base.yaml",
        "model: {hidden_size: 32, num_layers: 2, num_heads: 4, ffn_hidden_size: 1024, num_experts: 8, "
        "vocab_size: 50432, sequence_length: 2048}\n"
        "routing: {experts: 2}\n"
        "optimizer: {warmup_steps: 3}\n"
        "data: {train: [train.npy]}\n"
        "training: {steps: 12, global_batch_size: 4, micro_batch_size: 2, seed: 7}\n");
  }
  Study load(const std::string& yaml, const std::vector<std::string>& arguments = {}) {
    write_file_atomically(directory_ / "study.yaml", yaml);
    return load_study(directory_ / "study.yaml", arguments);
  }
  // Returns the error that refuses the study, or an empty string.
  std::string refusal(const std::string& yaml, const std::vector<std::string>& arguments = {}) {
    try {
      expand(load(yaml, arguments));
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }
  // Writes the metrics of a run whose last validation loss is `loss`.
  static void write_metrics(const StudyRun& run, double loss) {
    make_directories(run.directory);
    std::string text = runs::to_json({10, 1280, 5, {{"val/loss", loss + 1}}}) + "\n";
    text += runs::to_json({20, 2560, 9, {{"val/loss", loss}}}) + "\n";
    write_file_atomically(run.directory / "metrics.jsonl", text);
  }

  ScratchDirectory directory_;
};

}  // namespace dtopp::study
