// Steps for which a device's memory does not suffice.
#include <gtest/gtest.h>

#include "tiny_model.h"

namespace dtopp {
namespace {

TEST(Trainer, takes_a_smaller_micro_batch_where_memory_does_not_suffice) {
  RunConfig config = tiny();
  config.training.global_batch_size = config.training.micro_batch_size = 6;
  Trainer trainer = trainer_with_memory_for(2, config);
  config.training.micro_batch_size = 2;
  Trainer expected = trainer_of(config), none = trainer_with_memory_for(0, config);
  for (Trainer* each : {&trainer, &expected, &none}) each->initialise();
  for (int n = 0; n < 3; ++n) EXPECT_EQ(step(trainer).loss, step(expected).loss);
  EXPECT_EQ(trainer.micro_batch_size(), 2);
  EXPECT_EQ(distance(trainer, expected), 0);
  EXPECT_THROW(none.step(never), c10::OutOfMemoryError);
}

TEST(Trainer, leaves_nothing_of_a_backward_pass_for_which_memory_did_not_suffice) {
  RunConfig config = tiny();
  config.model.hidden_size = 64;
  config.model.ffn_hidden_size = 32;  // several buckets
  config.training.global_batch_size = 6;
  for (const int64_t first : {6, 3}) {  // in the last micro-batch, which is the first, and in one before it
    for (const char* late : {"model.layers.1.self_attn.q_proj.weight",
                             "model.layers.0.mlp.experts.gate_up_proj", "model.embed_tokens.weight"}) {
      SCOPED_TRACE(testing::Message() << first << " at " << late);
      config.training.micro_batch_size = first;
      Trainer trainer = trainer_with_memory_for(2, config, late);
      RunConfig smaller = config;
      smaller.training.micro_batch_size = 2;
      Trainer expected = trainer_of(smaller);
      for (Trainer* each : {&trainer, &expected}) each->initialise();
      for (int n = 0; n < 3; ++n) EXPECT_EQ(step(trainer).loss, step(expected).loss);
      EXPECT_EQ(distance(trainer, expected), 0);
    }
  }
}

}  // namespace
}  // namespace dtopp
