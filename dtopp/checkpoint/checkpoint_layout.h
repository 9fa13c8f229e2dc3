// Names the files of a checkpoint, and the checkpoints in their folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace dtopp::checkpoint {

// Tensors of one kind are in "<kind>.safetensors", or in several "<kind>-0000i-of-0000n.safetensors" with an
// index that lists the file of each tensor.
inline constexpr char kModel[] = "model";
inline constexpr char kOptimizer[] = "optimizer";
inline constexpr char kEma[] = "ema";
inline std::string whole_file(std::string_view kind) { return std::string(kind) + ".safetensors"; }
inline std::string index_file(std::string_view kind) { return whole_file(kind) + ".index.json"; }
// The name of part `number`, counted from 1, of `count` parts.
std::string part_file(std::string_view kind, size_t number, size_t count);

inline constexpr char kRouterFile[] = "router.safetensors";
inline constexpr char kStateFile[] = "state.json";
inline constexpr char kConfigFile[] = "config.yaml";
inline constexpr char kTokenizerFile[] = "tokenizer.json";
inline constexpr char kImagesFile[] = "images.json";
inline constexpr char kCheckpointFormat[] = "dtopp checkpoint 1";

// True for the optimizer's tensors and their index, which only a resumed run needs.
bool is_optimizer_file(std::string_view name);

// For example "step-00001000".
std::string checkpoint_name(int64_t step);

// True if `name` is the name of a checkpoint of some step.
bool is_checkpoint_name(const std::string& name);

// The steps of the checkpoints in the directory, newest first; empty if the directory does not exist. Throws
// DataError if it cannot be listed.
std::vector<int64_t> list_checkpoint_steps(const std::filesystem::path& checkpoints);

}  // namespace dtopp::checkpoint
