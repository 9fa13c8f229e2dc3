"""The runs that check_bits.py compares: configurations that together use every key, and layouts of ranks."""

STEPS = 12

# All configuration keys are here. Sizes are not multiples of a vector, so loop tails run too.
BASE = f"""
    routing.method=dtop_p routing.threshold=0.3 routing.experts=3 routing.kp=0.5 routing.ki=0.5
    loss.load_balance=0.01 loss.dynamic=0.001 loss.router_z=0.001
    optimizer.lr=0.01 optimizer.min_lr=0.001 optimizer.warmup_steps=3 optimizer.grad_clip=0.5
    training.steps={STEPS} training.global_batch_size=16 training.micro_batch_size=2 training.seed=3
    training.precision=fp32 training.device=cpu training.threads=1
    validation.every={STEPS} checkpoint.every=0 logging.tensorboard=false"""
LANGUAGE_MODEL = BASE + """
    model.type=language_model model.hidden_size=52 model.num_layers=3 model.num_heads=2 model.ffn_hidden_size=21
    model.num_experts=8 model.vocab_size=4096 model.sequence_length=37
    data.train=[text] data.validation=[short] validation.tokens=740"""
DIFFUSION = BASE + """
    model.type=diffusion_transformer model.hidden_size=40 model.num_layers=3 model.num_heads=2 model.ffn_hidden_size=21
    model.num_experts=8 model.image_size=10 model.channels=3 model.patch_size=2 model.num_classes=5
    diffusion.condition_dropout=0.3 diffusion.ema_decay=0.9 diffusion.samples_every=0
    data.train=[pixels] data.validation=[pixels] validation.tokens=500"""
DENSE = " model.num_experts=1 model.ffn_hidden_size=84 loss.load_balance=0 loss.dynamic=0 loss.router_z=0"
LATENTS = """ model.channels=4 model.text_size=6 model.text_length=3 model.position=sincos model.qk_norm=none
    diffusion.objective=ddpm diffusion.timesteps=uniform data.train=[latents] data.validation=[latents]"""
# Layouts: ranks, nodes, ranks per expert-parallel group.
EXPERTS = {"1 rank": (1, 1, 1), "2 ranks": (2, 1, 1), "2 x EP 2": (4, 1, 2)}
NO_EXPERTS = {"1 rank": (1, 1, 1), "2 ranks": (2, 1, 1), "4 ranks": (4, 1, 1)}
NODES = {"2 nodes x EP 2": (4, 2, 2)}
MANY = EXPERTS | NODES | {"4 ranks": (4, 1, 1), "EP 4": (4, 1, 4), "2 nodes x 2 ranks": (4, 2, 1)}
RUNS = {
    "top_k": (EXPERTS, LANGUAGE_MODEL + """
        routing.method=top_k routing.experts=3 routing.normalization=fixed model.tie_embeddings=false"""),
    "top_p": (EXPERTS, LANGUAGE_MODEL + """
        routing.method=top_p routing.threshold=0.4 routing.normalization=none routing.renormalize=false
        loss.batch_statistics=global optimizer.schedule=linear"""),
    "dtop_p_pi": (MANY, LANGUAGE_MODEL),
    "dtop_p_solve": (EXPERTS, LANGUAGE_MODEL + """
        routing.controller=solve model.norm=rms optimizer.schedule=wsd optimizer.decay_steps=4
        data.train=[{"path":text,"weight":2},{"path":short,"weight":1}]"""),
    "dtop_p_layer_pi": (EXPERTS, LANGUAGE_MODEL + """
        routing.scope=layer routing.experts=[2,3,4] loss.batch_statistics=global"""),
    "dtop_p_layer_solve": (EXPERTS, LANGUAGE_MODEL + " routing.scope=layer routing.controller=solve loss.router_z_on=normalized"),
    "dtop_p_documents": (EXPERTS, LANGUAGE_MODEL + """
        model.attend_across_documents=false routing.max_experts=4 model.scale_residual_init=true optimizer.schedule=constant
        data.train=[short]"""),
    "dtop_p_bf16": (EXPERTS, LANGUAGE_MODEL + " training.precision=bf16"),
    "dense": (NO_EXPERTS, LANGUAGE_MODEL + DENSE),
    "dit_dtop_p": (EXPERTS | NODES, DIFFUSION),
    "dit_dtop_p_layer_solve": (EXPERTS, DIFFUSION + LATENTS + " routing.scope=layer routing.controller=solve"),
    "dit_top_k": (EXPERTS, DIFFUSION + " routing.method=top_k routing.experts=3"),
    "dit_dense": (NO_EXPERTS, DIFFUSION + DENSE),
}
