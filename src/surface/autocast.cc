#include "surface/autocast.h"

#include <cctype>
#include <string_view>
#include <unordered_map>

namespace framejit::surface {
namespace {

struct Row {
  CastRule cpu, cuda;
  const char* names;
};
constexpr CastRule kNone = CastRule::kNone, kLower = CastRule::kLower, kWide = CastRule::kFloat32,
                   kPromote = CastRule::kPromote, kRefused = CastRule::kRefused;

// torch's lists, by the names of its operators (tests/python/test_autocast.py compares them with the dispatcher's).
// Operators that are not listed and call listed ones inside are refused, or stand with what comes of it.
constexpr Row kRows[] = {
    {kLower, kLower,
     "conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d _convolution prelu addmm matmul "
     "mm linalg_vecdot linear addbmm baddbmm bmm scaled_dot_product_attention einsum"},
    {kNone, kLower, "convolution addmv addr mv"},
    {kRefused, kLower, "chain_matmul linalg_multi_dot tensordot"},
    {kLower, kNone, "_addmm_activation"},
    {kWide, kWide,
     "cosine_embedding_loss nll_loss nll_loss2d nll_loss_nd hinge_embedding_loss kl_div l1_loss smooth_l1_loss "
     "huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss "
     "multi_margin_loss binary_cross_entropy_with_logits poisson_nll_loss cdist prod"},
    {kWide, kRefused, "binary_cross_entropy"},
    // On the GPU a composite of log_softmax and nll_loss, both in float32.
    {kWide, kWide, "cross_entropy_loss cross_entropy"},
    {kNone, kWide,
     "acos asin arccos arcsin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow rpow "
     "float_power rtruediv softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm nuclear_norm "
     "cosine_similarity dist pdist renorm logsumexp special_logsumexp special_expm1 special_log1p special_erfinv "
     "upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d "
     "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d "
     "upsample_bicubic2d _upsample_bicubic2d_aa interpolate softmax log_softmax special_softmax special_log_softmax "
     "softmin cumprod cumsum linalg_vector_norm linalg_matrix_norm linalg_norm norm sum"},
    {kPromote, kNone, "stack cat concat concatenate index_copy hstack vstack dstack column_stack row_stack"},
    {kNone, kPromote, "addcdiv addcmul atan2 arctan2 cross linalg_cross dot vdot index_put scatter_add"},
    {kWide, kPromote, "grid_sampler"},
    {kWide, kNone,
     "adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d cholesky cholesky_inverse cholesky_solve ctc_loss "
     "fake_quantize_per_tensor_affine fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft "
     "fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn geqrf grid_sampler_2d grid_sampler_3d inverse "
     "linalg_cholesky linalg_cholesky_ex linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh "
     "linalg_householder_product linalg_inv linalg_inv_ex linalg_qr linalg_svd linalg_svdvals lu_solve max_pool3d "
     "max_unpool2d max_unpool3d nanquantile orgqr ormqr polar qr quantile reflection_pad1d reflection_pad2d "
     "replication_pad1d replication_pad2d replication_pad3d svd trace triangular_solve view_as_complex"},
    // Kernels that cast inside, and what the lists name and the graph has no word for.
    {kRefused, kRefused,
     "fractional_max_pool2d fractional_max_pool3d linalg_cond linalg_lstsq linalg_matrix_rank linalg_solve "
     "linalg_solve_ex linalg_tensorinv linalg_tensorsolve linalg_pinv pinverse stft istft mkldnn_rnn_layer "
     "_native_multi_head_attention _scaled_dot_product_flash_attention inner bilinear matrix_power linalg_matrix_power "
     "matrix_exp linalg_matrix_exp lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell cov "
     "corrcoef multi_head_attention_forward"},
    {kNone, kRefused, "pairwise_distance"},
};

const Row* Find(std::string_view name) {
  static const auto* table = [] {
    auto* t = new std::unordered_map<std::string_view, const Row*>;
    for (const Row& r : kRows)
      for (std::string_view rest = r.names; !rest.empty();) {
        const size_t space = rest.find(' ');
        t->emplace(rest.substr(0, space), &r);
        rest = space == std::string_view::npos ? std::string_view() : rest.substr(space + 1);
      }
    return t;
  }();
  auto at = table->find(name);
  return at == table->end() ? nullptr : at->second;
}

// A composite on the CPU: matrix products where two operands share what the result lacks, else sums and products.
CastRule EinsumRule(const std::string& text) {
  std::string left, right, result;
  int commas = 0;
  bool arrow = false;
  for (char c : text) {
    commas += c == ',';
    arrow |= c == '>';
    if (std::isalpha(static_cast<unsigned char>(c))) (arrow ? result : commas ? right : left) += c;
  }
  if (commas == 0) return kNone;
  if (commas > 1) return kRefused;
  bool product = false;
  for (const std::string* labels : {&left, &right})
    for (char c : *labels) {
      const bool both = (labels == &left ? right : left).find(c) != std::string::npos;
      const bool kept = arrow ? result.find(c) != std::string::npos : !both;
      if (!both && !kept) return kRefused;  // summed first, in the operand's type
      product |= both && !kept;
    }
  return product ? kLower : kNone;
}

}  // namespace

CastRule AutocastRule(const Call& call, bool cuda) {
  std::string_view callee = call.callee;
  if (callee.ends_with(".__get__")) return kNone;
  std::string name(callee.substr(callee.rfind('.') + 1));
  const bool dunder = name.starts_with("__") && name.ends_with("__");
  if (dunder) {
    name = name.substr(2, name.size() - 4);
    if (name == "rmatmul") name = "matmul";
    if (name[0] == 'i' && Find(name.substr(1))) return kNone;
  }
  for (const char* space : {"linalg", "fft", "special"})
    if (callee.find(std::string(".") + space + ".") != std::string_view::npos && !name.starts_with(space))
      name = std::string(space) + "_" + name;
  if (name == "pad") {  // reflection_pad and replication_pad are listed
    const Arg* mode = call.args.size() > 2 ? &call.args[2] : nullptr;
    for (const auto& [key, value] : call.kwargs)
      if (key == "mode") mode = &value;
    return !cuda && mode && (mode->s == "reflect" || mode->s == "replicate") ? kWide : kNone;
  }
  if (name == "einsum" && !cuda) return call.args.empty() ? kRefused : EinsumRule(call.args[0].s);
  const Row* row = Find(name);
  if (!row) return kNone;
  CastRule rule = cuda ? row->cuda : row->cpu;
  bool told = false;  // what to compute in
  for (const Arg& a : call.args) told |= a.is(Arg::Kind::kDType);
  for (const auto& [key, value] : call.kwargs) told |= key == "dtype" && !value.is_none();
  return told && rule == kWide ? kNone : rule;
}

}  // namespace framejit::surface
