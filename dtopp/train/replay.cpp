#include "dtopp/train/replay.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "dtopp/base/format.h"
#include "dtopp/base/json.h"
#include "dtopp/distributed/rank_agreement.h"
#include "dtopp/train/nonfinite_watch.h"

namespace dtopp::train {
namespace {

using nlohmann::ordered_json;

const char* name_of(Pass pass) { return pass == Pass::kForward ? "forward" : "backward"; }

// The parameters that hold non-finite values. Collective.
ordered_json nonfinite_parameters(const Trainer& trainer) {
  ordered_json names = ordered_json::array();
  for (const parameters::ParameterSpec& spec : trainer.parameters().specs()) {
    if (!at::isfinite(trainer.parameters().main_param(spec.name)).all().item<bool>())
      names.push_back(spec.name);
  }
  return names;
}

ordered_json origin_json(const NonfiniteOrigin& origin) {
  ordered_json json = {{"order", origin.order},
                       {"pass", name_of(origin.pass)},
                       {"scopes", origin.scopes},
                       {"operation", origin.operation},
                       {"output", origin.output},
                       {"tensor", origin.type},
                       {"nan", origin.nan},
                       {"infinite", origin.infinite},
                       {"first_index", origin.first_index},
                       {"largest_input", origin.largest_input}};
  return json;
}

// The samples of the micro-batch in which the value appeared.
ordered_json samples_of(const Trainer& trainer, const NonfiniteOrigin& origin, int64_t position,
                        int64_t size) {
  ordered_json samples = ordered_json::array();
  for (const std::string& scope : origin.scopes) {
    if (!scope.starts_with(kMicroBatchScope)) continue;
    int64_t micro_batch = 0;
    std::from_chars(scope.data() + kMicroBatchScope.size(), scope.data() + scope.size(), micro_batch);
    for (int64_t i = 0; i < size; ++i)
      samples.push_back(
          trainer.data().training->describe(static_cast<uint64_t>(position + micro_batch * size + i)));
  }
  return samples;
}

ordered_json largest_json(const std::vector<LargestValue>& largest) {
  ordered_json json = ordered_json::array();
  for (const LargestValue& value : largest)
    json.push_back({{"scope", value.scope},
                    {"pass", name_of(value.pass)},
                    {"operation", value.operation},
                    {"magnitude", value.magnitude}});
  return json;
}

// The findings of one rank: {"origin", "largest"}.
ordered_json found_here(const Trainer& trainer, const NonfiniteWatch& watch, int64_t position, int64_t size) {
  ordered_json found = {{"origin", nullptr}, {"largest", largest_json(watch.largest())}};
  if (!watch.origin()) return found;
  found["origin"] = origin_json(*watch.origin());
  found["origin"]["samples"] = samples_of(trainer, *watch.origin(), position, size);
  return found;
}

// The rank with the earliest origin; rank 0 if none has one.
ordered_json earliest(distributed::Collectives& ranks, const ordered_json& here) {
  ordered_json first;
  for (const std::string& text : distributed::gather_bytes(ranks, dump_json(here), "replay")) {
    ordered_json found = ordered_json(parse_json(text, "replay"));
    if (first.is_null() ||
        (!found["origin"].is_null() &&
         (first["origin"].is_null() || found["origin"]["order"] < first["origin"]["order"])))
      first = std::move(found);
  }
  return first;
}

std::string joined(const ordered_json& texts, const char* between) {
  std::string all;
  for (const auto& text : texts) all.append(all.empty() ? "" : between).append(text.get<std::string>());
  return all;
}

std::string origin_text(const ordered_json& origin) {
  std::string text = "first non-finite value\n";
  const auto row = [&](const char* name, const std::string& value) {
    text.append(format("  %-10s ", name)).append(value + "\n");
  };
  row("pass", origin["pass"]);
  row("place", origin["scopes"].empty() ? "outside the micro-batches" : joined(origin["scopes"], ", "));
  row("operation", origin["operation"].get<std::string>() + ", output " + dump_json(origin["output"]) + ": " +
                       origin["tensor"].get<std::string>());
  row("values", dump_json(origin["nan"]) + " NaN and " + dump_json(origin["infinite"]) +
                    " infinite, first at " + dump_json(origin["first_index"]));
  row("inputs", format("finite, at most %.4g", origin["largest_input"].get<double>()));
  for (const auto& sample : origin["samples"]) row("sample", sample);
  return text;
}

}  // namespace

ordered_json replay_step(Trainer& trainer, int64_t micro_batch_size) {
  const int64_t position = trainer.state().sample_position;
  ordered_json parameters = nonfinite_parameters(trainer);
  std::optional<StepResult> result;
  ordered_json found;
  // A step that exceeds its predicted capacity runs again.
  while (!result) {
    const NonfiniteWatch watch;
    trainer.step({});
    result = trainer.next_result(0);
    found = found_here(trainer, watch, position, micro_batch_size);
  }
  found = earliest(trainer.ranks(), found);
  ordered_json losses;
  for (const auto& [name, value] : result->losses) losses[name] = value;
  return {{"step", result->step},      {"finite", !result->skipped},     {"loss", result->loss},
          {"losses", losses},          {"grad_norm", result->grad_norm}, {"parameters", parameters},
          {"origin", found["origin"]}, {"largest", found["largest"]}};
}

std::string replay_text(const ordered_json& replay) {
  std::string text =
      format("step %lld: loss %g, gradient norm %g: %s\n", replay["step"].get<long long>(),
             replay["loss"].get<double>(), replay["grad_norm"].get<double>(),
             replay["finite"].get<bool>() ? "finite" : "not finite or too large, so it is skipped");
  if (!replay["parameters"].empty())
    text += "parameters that are not finite before the step: " + joined(replay["parameters"], ", ") + "\n";
  if (!replay["origin"].is_null()) text += origin_text(replay["origin"]);
  constexpr size_t kShown = 10;
  std::vector<ordered_json> largest(replay["largest"].begin(), replay["largest"].end());
  std::ranges::stable_sort(largest, std::ranges::greater(),
                           [](const ordered_json& value) { return value["magnitude"].get<double>(); });
  largest.resize(std::min(largest.size(), kShown));
  text += format("%-28s %-9s %-32s %s\n", "largest values", "pass", "operation", "magnitude");
  for (const ordered_json& value : largest)
    text += format("%-28s %-9s %-32s %.4g\n", value["scope"].get<std::string>().c_str(),
                   value["pass"].get<std::string>().c_str(), value["operation"].get<std::string>().c_str(),
                   value["magnitude"].get<double>());
  return text;
}

}  // namespace dtopp::train
