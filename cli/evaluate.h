// The two halves of `dtopp evaluate`: the perplexity of a text, and the tasks.
#pragma once

#include <cstdint>
#include <string>

#include "dtopp/train/checkpoint.h"

namespace dtopp::cli {

struct EvaluateOptions {
  std::string checkpoint;
  std::string tasks;
  std::string text;       // perplexity
  std::string data;       // tasks: the folder with their files
  std::string tokenizer;  // tasks: for a checkpoint that holds none
  std::string dump;       // tasks
  std::string output;
  int64_t limit = 0;  // items of each data set; 0: all
  int64_t batch_size = 8;
  int64_t threads = 0;
  bool dry_run = false;
  bool json = false;
};

// open_checkpoint whose warnings go to standard error.
Checkpoint open_named_checkpoint(const EvaluateOptions& options);

void evaluate_perplexity(const EvaluateOptions& options);
void evaluate_tasks(const EvaluateOptions& options);

}  // namespace dtopp::cli
