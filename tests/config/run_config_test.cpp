#include "dtopp/config/run_config.h"

#include <algorithm>
#include <map>

#include <gmock/gmock.h>

#include "dtopp/config/config.h"
#include "tests/config/run_config_fixture.h"

namespace dtopp::config {
namespace {

TEST_F(RunConfigTest, defaults_are_the_papers_hyperparameters) {
  const RunConfig config = load({});
  EXPECT_EQ(config.routing.method, RoutingMethod::kDTopP);
  EXPECT_EQ(config.routing.experts, std::vector<double>{8.0});
  EXPECT_EQ(config.optimizer.betas, (std::vector<double>{0.9, 0.95}));
  EXPECT_EQ(config.training.steps, 95367);
  EXPECT_EQ(config.data.train, std::vector<DataSource>{{.path = "t"}});
}

TEST_F(RunConfigTest, a_missing_size_is_named) {
  for (const std::string& model : {kModelYaml, kImageModelYaml}) {
    for (const char* key : {"hidden_size", "num_layers", "num_heads", "ffn_hidden_size", "num_experts",
                            "vocab_size", "sequence_length", "image_size", "channels", "patch_size"}) {
      const size_t begin = model.find(std::string(key) + ": ");
      if (begin == std::string::npos) continue;
      const size_t end = model.find_first_of(",}", begin) + (model[model.find_first_of(",}", begin)] == ',');
      const auto path = write("run.yaml", model.substr(0, begin) + model.substr(end) + kMinimal);
      EXPECT_EQ(usage_error([&] { load_run_config(path, {}); }),
                "run.yaml: model." + std::string(key) + ": is missing; a model has no default size");
    }
  }
}

TEST_F(RunConfigTest, impossible_values_name_the_key_and_the_bound) {
  const std::map<std::vector<std::string>, std::string> cases = {
      {{"model.hidden_size=-2"}, "model.hidden_size: must lie in [1, 1048576], is -2"},
      {{"model.hidden_size=0"}, "model.hidden_size: must be at least 1, is 0"},
      {{"model.num_layers=-1"}, "model.num_layers: must lie in [1, 16384], is -1"},
      {{"model.num_heads=3"}, "model.num_heads: 3 heads do not divide hidden_size 2048"},
      {{"model.num_heads=2048"},
       "model.num_heads: hidden_size 2048 over 2048 heads gives an odd head size; rotary positions need an "
       "even one"},
      {{"model.shared_experts=-1"}, "model.shared_experts: must lie in [0, 65536], is -1"},
      {{"model.num_experts=1", "model.shared_experts=1"},
       "model.shared_experts: a dense model has no experts to share with; set it to 0"},
      {{"model.shared_gate=true"}, "model.shared_gate: needs model.shared_experts; set it to false"},
      {{"model.vocab_size=-2"}, "model.vocab_size: must lie in [1, 2147483647], is -2"},
      {{"model.num_kv_heads=3"}, "model.num_kv_heads: 3 does not divide num_heads 16"},
      {{"model.head_size=7"}, "model.head_size: an odd head size; rotary positions need an even one"},
      {{"model.norm_eps=0"}, "model.norm_eps: must be above 0"},
      {{"model.rope_base=0"}, "model.rope_base: must be above 0"},
      {{"model.attention_window=-1"}, "model.attention_window: must be at least 0"},
      {{"model.init_std=0"}, "model.init_std: must be above 0"},
      {{"training.threads=4294967297"}, "training.threads: must lie in [0, 4096], is 4294967297"},
      {{"loss.lm_z=-1e-4"}, "loss.lm_z: must not be negative, is -1.0e-04"},
      {{"loss.load_balance=-1"}, "loss.load_balance: must not be negative, is -1.0"},
      {{"loss.dynamic=-1"}, "loss.dynamic: must not be negative, is -1.0"},
      {{"loss.router_z=-1"}, "loss.router_z: must not be negative, is -1.0"},
      {{"loss.sequence_balance=-1"}, "loss.sequence_balance: must not be negative, is -1.0"},
      {{"optimizer.lr=0"}, "optimizer.lr: must be above 0, is 0.0"},
      {{"optimizer.min_lr=1"}, "optimizer.min_lr: 1.0 is above optimizer.lr 0.003"},
      {{"optimizer.min_lr=-1"}, "optimizer.min_lr: must not be negative, is -1.0"},
      {{"optimizer.warmup_steps=-1"}, "optimizer.warmup_steps: must be at least 0, is -1"},
      {{"training.steps=100"}, "optimizer.warmup_steps: 2500 is above training.steps 100"},
      {{"optimizer.schedule=wsd"},
       "optimizer.decay_steps: is not set; schedule wsd needs the number of last steps in which lr falls to "
       "min_lr"},
      {{"optimizer.schedule=wsd", "training.steps=3000", "optimizer.decay_steps=501"},
       "optimizer.decay_steps: 501 is above training.steps 3000 minus optimizer.warmup_steps 2500"},
      {{"optimizer.decay_steps=-1"}, "optimizer.decay_steps: must be at least 0, is -1"},
      {{"optimizer.schedule=wds"},
       "optimizer.schedule: expected one of cosine, wsd, constant, linear, got 'wds'; did you mean wsd?"},
      {{"training.initialize_from=a", "training.cooldown_from=b"},
       "training.initialize_from: a run starts with another run's parameters or resumes that run "
       "(training.cooldown_from); set one of them"},
      {{"training.upcycle_noise=-1"}, "training.upcycle_noise: must not be negative, is -1.0"},
      {{"training.initialize_from=a", "routing.ki=0"},
       "routing.ki: must be positive with training.initialize_from, because the sum of errors holds the "
       "first "
       "threshold"},
      {{"data.train=[{path: a, weight: 0}]"}, "data.train: the weight of a must be above 0, is 0.0"},
      {{"data.train=[{path: a, weight: 1}, a/../a]"}, "data.train: names a/../a twice; list it once"},
      {{"data.train=[{path: data/a, weight: 1}, data/a/]"}, "data.train: names data/a/ twice; list it once"},
      {{"data.train=[{weight: 1}]"}, "data.train[0]: has no path"},
      {{"data.train=[a, {path: b, wieght: 1}]"},
       "unknown key 'data.train[1].wieght'; did you mean data.train[1].weight?"},
      {{"data.train=[{path: a, weight: heavy}]"}, "data.train[0].weight: expected a number, got 'heavy'"},
      {{"data.train="}, "data.train: expected a path or a list of sources, got the quoted text ''"},
      {{"data.train=['']"}, "data.train: holds an empty path"},
      {{"data.end_of_text=50432"},
       "data.end_of_text: must be an id below model.vocab_size 50432, or -1 for the tokenizer's, is 50432"},
      {{"optimizer.betas=[0.9]"}, "optimizer.betas: must be two numbers, [0.9, 0.95]"},
      {{"optimizer.betas=[0.9, 1.0]"}, "optimizer.betas: must lie in [0, 1), one is 1.0"},
      {{"optimizer.betas=[-0.1, 0.9]"}, "optimizer.betas: must lie in [0, 1), one is -0.1"},
      {{"optimizer.eps=0"}, "optimizer.eps: must be above 0"},
      {{"optimizer.weight_decay=-1"}, "optimizer.weight_decay: must not be negative, is -1.0"},
      {{"optimizer.grad_clip=-1"}, "optimizer.grad_clip: must not be negative, is -1.0"},
      {{"training.steps=0"}, "training.steps: must be at least 1, is 0"},
      {{"training.global_batch_size=0"}, "training.global_batch_size: must be at least 1, is 0"},
      {{"training.micro_batch_size=0"}, "training.micro_batch_size: must be at least 1, is 0"},
      {{"training.micro_batch_size=7"},
       "training.micro_batch_size: 7 does not divide training.global_batch_size 512"},
      {{"model.num_experts=1", "training.recompute=moe"},
       "training.recompute: moe needs experts, and a dense model has none; set layer or none"},
      {{"training.steps=9223372036854775807"},
       "training.steps: steps x global_batch_size x tokens per sample overflows a 64-bit count"},
      {{"training.seed=-1"}, "training.seed: must be at least 0, is -1"},
      {{"training.threads=-1"}, "training.threads: must lie in [0, 4096], is -1"},
      {{"training.max_skips=-1"}, "training.max_skips: must be at least 0, is -1"},
      {{"parallel.expert_parallel=0"}, "parallel.expert_parallel: must be at least 1, is 0"},
      {{"parallel.expert_parallel=6"}, "parallel.expert_parallel: 6 does not divide model.num_experts 64"},
      {{"parallel.expert_parallel=2", "model.num_experts=1"},
       "parallel.expert_parallel: a dense model has no experts to share; leave it at 1"},
      {{"parallel.expert_parallel=automatic"},
       "parallel.expert_parallel: expected an integer or auto, got 'automatic'"},
      {{"parallel.expert_parallel=4.0"}, "parallel.expert_parallel: expected an integer or auto, got '4.0'"},
      {{"parallel.timeout=0"}, "parallel.timeout: must lie in [1, 86400], is 0"},
      {{"validation.every=-1"}, "validation.every: must be at least 0, is -1"},
      {{"validation.tokens=0"}, "validation.tokens: must be at least 1, is 0"},
      {{"validation.task_limit=-1"}, "validation.task_limit: must be at least 0, is -1"},
      {{"checkpoint.every=-1"}, "checkpoint.every: must be at least 0, is -1"},
      {{"checkpoint.keep=-1"}, "checkpoint.keep: must be at least 0, is -1"},
      {{"logging.every=0"}, "logging.every: must be at least 1, is 0"},
      {{"data.train=[]"}, "data.train: names no training data; give the folders that `dtopp prepare` wrote"},
      {{"data.train=[a, '']"}, "data.train: holds an empty path"},
      {{"data.validation=['']"}, "data.validation: holds an empty path"},
      {{"output="}, "output: names no directory for the run"},
  };
  for (const auto& [overrides, message] : cases)
    EXPECT_THAT(error(overrides), ::testing::EndsWith(": " + message)) << overrides[0];
}

TEST_F(RunConfigTest, an_impossible_value_is_placed_where_it_was_set) {
  write("base.yaml", kModelYaml + "routing:\n  experts: 65\n");
  const auto path = write("run.yaml", std::string("base: base.yaml\n") + kMinimal);
  EXPECT_EQ(usage_error([&] { load_run_config(path, {}); }),
            "base.yaml:3: routing.experts: must lie in [1, 64] (model.num_experts), is 65.0");
  EXPECT_EQ(
      usage_error([&] { load_run_config(path, {"routing.experts=70"}); }),
      "argument 'routing.experts=70': routing.experts: must lie in [1, 64] (model.num_experts), is 70.0");
  EXPECT_EQ(usage_error([&] { load_run_config(write("empty.yaml", kModelYaml), {}); }),
            "empty.yaml: data.train: names no training data; give the folders that `dtopp prepare` wrote");
}

TEST_F(RunConfigTest, mistyped_keys_are_answered_with_the_nearest) {
  EXPECT_EQ(usage_error([&] { load_run_config(write("a.yaml", "model:\n  hidden_siz: 8\n"), {}); }),
            "a.yaml:2: unknown key 'model.hidden_siz'; did you mean model.hidden_size?");
  EXPECT_EQ(usage_error([&] { load_run_config(write("a.yaml", "routing:\n  mehtod: top_k\n"), {}); }),
            "a.yaml:2: unknown key 'routing.mehtod'; did you mean routing.method?");
  EXPECT_EQ(error({"routing.target_experts=1"}),
            "argument 'routing.target_experts=1': unknown key 'routing.target_experts'; did you mean "
            "routing.experts?");
  EXPECT_EQ(error({"lr=1"}), "argument 'lr=1': unknown key 'lr'; did you mean optimizer.lr?");
  EXPECT_EQ(error({"training.learning_rate=1"}).find("argument 'training.learning_rate=1': unknown key"), 0U);
  EXPECT_EQ(error({"routing.method=topk"}),
            "argument 'routing.method=topk': routing.method: expected one of top_k, top_k_bias, top_p, "
            "dtop_p, dtop_p_bias, relu, expert_threshold, hash, got 'topk'; did you mean top_k?");
}

TEST_F(RunConfigTest, decay_steps_are_judged_for_wsd_alone) {
  EXPECT_EQ(error({"optimizer.decay_steps=1000000"}), "no error");
  EXPECT_EQ(error({"optimizer.schedule=wsd", "optimizer.decay_steps=92867"}), "no error");
}

TEST_F(RunConfigTest, prints_what_it_reads) {
  const RunConfig config =
      load({"optimizer.lr=0.1234567890123456789", "routing.threshold=0.30000000000000004", "name=odd: name",
            "validation.tasks=[hellaswag, arc_easy]", "routing.scope=layer", "loss.router_z=5e-324"});
  const RunConfig back = load_run_config(write("printed.yaml", to_yaml(config)), {});
  EXPECT_THAT(differing_keys(config, back), ::testing::IsEmpty());
  EXPECT_EQ(back.optimizer.lr, 0.1234567890123456789);
  EXPECT_EQ(back.routing.threshold, 0.30000000000000004);
  EXPECT_EQ(back.loss.router_z, 5e-324);
  EXPECT_EQ(back.name, "odd: name");
  EXPECT_EQ(to_yaml(back), to_yaml(config));
  EXPECT_EQ(to_yaml(parse_run_config(to_yaml(config), "text")), to_yaml(config));
  EXPECT_THAT(to_yaml(config), ::testing::HasSubstr("  experts: 8.0\n"));
}

TEST_F(RunConfigTest, lists_differing_keys_in_field_order) {
  const RunConfig a = load({});
  const RunConfig b = load({"training.seed=2", "optimizer.betas=[0.9, 0.99]", "model.num_layers=2"});
  EXPECT_EQ(differing_keys(a, b),
            (std::vector<std::string>{"model.num_layers", "optimizer.betas", "training.seed"}));
  EXPECT_THAT(differing_keys(a, a), ::testing::IsEmpty());
}

TEST_F(RunConfigTest, a_resumed_run_may_change_how_it_works_but_not_what_it_computes) {
  std::vector<std::string> free;
  for (const auto& [key, value] : flatten_config(RunConfig())) {
    if (!affects_result(key)) free.push_back(key);
  }
  EXPECT_EQ(free, (std::vector<std::string>{"name",
                                            "data.validation",
                                            "training.micro_batch_size",
                                            "training.recompute",
                                            "training.device",
                                            "training.deterministic",
                                            "training.threads",
                                            "training.max_skips",
                                            "training.max_hours",
                                            "parallel.expert_parallel",
                                            "parallel.reproducible",
                                            "parallel.timeout",
                                            "validation.every",
                                            "validation.tokens",
                                            "validation.tasks",
                                            "validation.task_data",
                                            "validation.task_limit",
                                            "validation.samples",
                                            "checkpoint.every",
                                            "checkpoint.keep",
                                            "checkpoint.asynchronous",
                                            "logging.every",
                                            "logging.console_every",
                                            "logging.tensorboard",
                                            "logging.trace_step",
                                            "output"}));
  free.clear();
  for (const auto& [key, value] : flatten_config(DiffusionConfig())) {
    if (!affects_result("diffusion." + key)) free.push_back(key);
  }
  EXPECT_EQ(free, (std::vector<std::string>{"samples_every", "sample_classes"}));
}

TEST_F(RunConfigTest, plans_need_neither_data_nor_output) {
  const auto path = write("model.yaml", kModelYaml);
  EXPECT_EQ(load_model_run_config(path, {}).model.num_layers, 16);
  EXPECT_THAT(usage_error([&] { load_model_run_config(path, {"model.num_layers=-1"}); }),
              ::testing::HasSubstr("model.num_layers"));
}

}  // namespace
}  // namespace dtopp::config
