// The names of a checkpoint's files, and of the checkpoints in their folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace dtopp {

// Tensors of one kind: "<kind>.safetensors", or "<kind>-0000i-of-0000n.safetensors" with an index that says
// which tensor is where.
inline constexpr char kModel[] = "model";
inline constexpr char kOptimizer[] = "optimizer";
inline constexpr char kAverage[] = "ema";
inline std::string whole_file(std::string_view kind) { return std::string(kind) + ".safetensors"; }
inline std::string index_file(std::string_view kind) { return whole_file(kind) + ".index.json"; }
// The part `number`, from 1, of `count`.
std::string part_file(std::string_view kind, size_t number, size_t count);

inline constexpr char kStateFile[] = "state.json";
inline constexpr char kConfigFile[] = "config.yaml";
inline constexpr char kTokenizerFile[] = "tokenizer.json";
inline constexpr char kImagesFile[] = "images.json";
inline constexpr char kCheckpointFormat[] = "dtopp checkpoint 1";

// Whether only a run that goes on needs the file: the optimiser's tensors and their index.
bool is_optimizer_file(std::string_view name);

// "step-00001000"
std::string checkpoint_name(int64_t step);

// Whether that is the name of some step.
bool is_checkpoint_name(const std::string& name);

// Steps of the checkpoints in the directory, newest first; none where there is no directory. DataError where
// it cannot be listed.
std::vector<int64_t> list_checkpoint_steps(const std::filesystem::path& checkpoints);

}  // namespace dtopp
