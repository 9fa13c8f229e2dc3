"""Configuration of DTop-p Mixture-of-Experts language models in transformers."""

from transformers import PretrainedConfig


class DtoppConfig(PretrainedConfig):
    """A language model that dtopp trained.

    num_key_value_heads: heads of keys and values, which the heads of queries share; None: num_attention_heads.
    head_dim: numbers per head; None: hidden_size / num_attention_heads.
    qk_norm: norm of queries and keys: "none", "whole" (over all heads together) or "head" (over each head).
    qkv_bias: whether queries, keys and values have biases.
    norm: "layer" (LayerNorm without bias) or "rms", for blocks, queries and keys; its eps is `rms_norm_eps`.
    num_experts: experts per layer; 1: a dense model.
    zero_experts, zero_kind: a router selects from this many more experts, which return 0 ("zero") or their input ("copy").
    shared_experts: every token also passes one feed-forward network of this many times intermediate_size.
    shared_gate: whether its output is multiplied by sigmoid(w x).
    router_method: the experts that a token selects:
        "top_k": the `router_top_k` most probable ones;
        "top_k_bias": the `router_top_k` ones with the largest score plus bias;
        "top_p", "dtop_p": the most probable ones until their probabilities sum to the layer's threshold p;
        "dtop_p_bias": as many, and a bias decides which;
        "relu": those with a positive logit;
        "expert_threshold": those whose own threshold the logit reaches;
        "hash": `router_top_k` ones that its id determines.
    router_thresholds: p per layer. It may be set; `DtoppForCausalLM.set_target_experts` finds it for a number of experts.
    router_target_experts: mean number of experts per token that training held: one number, or one per layer.
    router_normalization: normalization of the logits over experts: "none", "fixed" (mean 0, variance 1) or "dynamic" (the same,
        times a learned scale per layer).
    router_expert_normalization: normalization of each expert's logits over tokens, before router_normalization: "none" or "running"
        (the router's buffers hold the means, of `router_normalization_steps` steps of training).
    router_renormalize: True, the weights of a token's experts sum to 1; "l2", their squares do; False, neither.
    router_gate_scale: for "top_k_bias", what they sum to.
    router_hash_layers: the first layers, in which the token's id determines `router_top_k` experts as with "hash".
    router_max_experts: maximum number of experts per token; 0: no limit. A smaller one saves time and memory.
    router_cut_decay, router_cut_steps: for "expert_threshold", the decay of its moving average and the number of steps in it.
    attend_across_documents: False if dtopp lets a token attend only to its own document. In transformers a token attends to its
        whole sequence, so a sequence must then be one document.
    end_of_text: id of the token that ends a document; -1: the tokenizer's <|endoftext|>.
    """

    model_type = "dtopp"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # the second name since transformers 5.24
    attribute_map = {"num_local_experts": "num_experts"}

    def __init__(self, vocab_size=50432, hidden_size=2048, intermediate_size=1024, num_hidden_layers=16, num_attention_heads=16,
                 num_key_value_heads=None, head_dim=None, qk_norm="whole", qkv_bias=False, max_position_embeddings=2048,
                 num_experts=64, zero_experts=0, zero_kind="zero", shared_experts=0, shared_gate=False, norm="layer",
                 rms_norm_eps=1e-5, hidden_act="silu",
                 router_method="dtop_p", router_top_k=8, router_thresholds=None, router_target_experts=8,
                 router_normalization="dynamic", router_renormalize=True, router_gate_scale=1.0, router_max_experts=0,
                 router_cut_decay=0.99, router_cut_steps=0, router_expert_normalization="none", router_normalization_steps=0,
                 router_hash_layers=0,
                 initializer_range=0.02, rope_parameters=None, use_cache=True, output_router_logits=False,
                 attend_across_documents=True, end_of_text=-1, **kwargs):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads or num_attention_heads
        self.head_dim = head_dim or hidden_size // num_attention_heads
        self.qk_norm = qk_norm
        self.qkv_bias = qkv_bias
        self.max_position_embeddings = max_position_embeddings
        self.num_experts = num_experts
        self.zero_experts = zero_experts
        self.zero_kind = zero_kind
        self.shared_experts = shared_experts
        self.shared_gate = shared_gate
        self.norm = norm
        self.rms_norm_eps = rms_norm_eps
        self.hidden_act = hidden_act
        self.router_method = router_method
        self.router_top_k = router_top_k
        self.router_thresholds = [0.25] * num_hidden_layers if router_thresholds is None else router_thresholds
        self.router_target_experts = router_target_experts
        self.router_normalization = router_normalization
        self.router_renormalize = router_renormalize
        self.router_gate_scale = router_gate_scale
        self.router_max_experts = router_max_experts
        self.router_hash_layers = router_hash_layers
        self.router_cut_decay = router_cut_decay
        self.router_cut_steps = router_cut_steps
        self.router_expert_normalization = router_expert_normalization
        self.router_normalization_steps = router_normalization_steps
        self.initializer_range = initializer_range
        self.rope_parameters = rope_parameters or {"rope_type": "default", "rope_theta": 10000.0}
        self.use_cache = use_cache
        self.output_router_logits = output_router_logits
        self.attend_across_documents = attend_across_documents
        self.end_of_text = end_of_text
        # Attributes of transformers' OLMoE, because this model uses its attention and decoder.
        self.attention_bias = False
        self.attention_dropout = 0.0
        self.clip_qkv = None
        self.norm_topk_prob = router_renormalize is True
        self.router_aux_loss_coef = 0.0
        super().__init__(**kwargs)

    @property
    def num_experts_per_tok(self):
        """The width of the router's output: slots per token."""
        if self.router_method in ("top_k", "top_k_bias", "hash"):
            return min(self.router_top_k, self.num_experts)
        return min(self.router_max_experts or self.num_experts, self.num_experts)
