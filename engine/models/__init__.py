"""The registry of architectures: Hugging Face name → "module:Class". Imports no model (and no torch)."""

ARCHITECTURES: dict[str, str] = {
    "LlamaForCausalLM": "engine.models.llama:LlamaForCausalLM",
    "MistralForCausalLM": "engine.models.mistral:MistralForCausalLM",
    "Qwen2ForCausalLM": "engine.models.qwen2:Qwen2ForCausalLM",
    "Qwen3ForCausalLM": "engine.models.qwen3:Qwen3ForCausalLM",
}
