#include "graph/effects.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/name_table.h"

namespace framejit {
namespace {

using diag::BreakId;

struct Row {
  const char* names;
  Effects effects;
};

// The rows of torch, and of framejit._functions and framejit._random, which stand beside it.
constexpr Row kTorch[] = {
    {"linalg_ldl_solve lu_unpack", {.flags = kTrustsIntegers}},
    {"linalg_lu_solve", {.flags = kTrustsIntegers, .keeps = kResult}},
    {"max median min nanmedian", {.keeps = kFirst | kResult | kIfAlone}},
    {"_segment_reduce segment_reduce", {.keeps = kFirst | kResult}},
    {"framejit._functions.written framejit._functions.own_backward", {.flags = kForeign}},
    {"frexp", {.keeps = kSecondResult}},
    {"new_tensor", {.flags = kTakesSequences}},
    {"BFloat16Tensor BoolTensor ByteTensor CharTensor DoubleTensor FloatTensor HalfTensor IntTensor LongTensor "
     "ShortTensor Tensor",
     {.flags = kTypeOfTensors | kTakesSequences}},
    {"_sample_dirichlet _standard_gamma alpha_dropout binomial cauchy dropout1d dropout2d dropout3d exponential "
     "feature_alpha_dropout feature_dropout framejit._random.attention framejit._random.seeded geometric log_normal "
     "multinomial "
     "native_dropout normal normal_functional poisson randint_like random rrelu_ rrelu_with_noise_ uniform",
     {.flags = kDraws}},
    {"rrelu", {.flags = kDraws, .keeps = kFirst}},
    {"bernoulli", {.flags = kDraws, .batch = Batch::kDrawnInRows}},
    {"rand_like", {.flags = kDraws, .batch = Batch::kDrawnAsItLies}},
    {"randn_like", {.flags = kDraws, .batch = Batch::kDrawnInRows}},
    {"__contains__ __deepcopy__ __dlpack__ __reduce_ex__ __setstate__ apply array_equiv as_strided as_strided_copy "
     "as_strided_scatter as_subclass compress data data.__get__ dump dumps errstate extract flags flatnonzero "
     "grad.__get__ intersect1d map map2 module_load names rename requires_grad requires_grad.__get__ resize "
     "resize_as set set_default_dtype setdiff1d seterr setflags setxor1d share_memory storage swap_tensors tobytes "
     "tofile trim_zeros union1d unique unique_all unique_counts unique_inverse unique_values untyped_storage",
     {.flags = kOutside}},
    {"argmax argmin narrow select", {.batch = Batch::kDim}},
    {"squeeze", {.batch = Batch::kDims}},
    {"broadcast_tensors", {.batch = Batch::kAllAlike}},
    {"diagonal", {.batch = Batch::kDiagonal}},
    {"expand_as", {.batch = Batch::kExpandAs}},
    {"flatten", {.flags = kKeepsNoOperand | kKeepsNoResult, .batch = Batch::kFlatten}},
    {"movedim", {.batch = Batch::kMoveDim}},
    {"t", {.batch = Batch::kTransposed}},
    {"unflatten", {.batch = Batch::kUnflatten}},
    {"zero_", {.batch = Batch::kFill}},
    {"_pack_padded_sequence _pad_packed_sequence _unique bincount count_of one_hot unique_dim",
     {.flags = kSizedByData}},
    {"bitwise_not bool detach elu int invert isfinite isinf isnan logical_not long pos positive selu short",
     {.batch = Batch::kUnary}},
    {"abs absolute acosh asinh atan atanh cos deg2rad digamma erf erfc gelu hardsigmoid hardswish "
     "hardtanh lgamma logit mish nan_to_num negative rad2deg relu6 silu sin sinc softsign square",
     {.flags = kKeepsNoResult, .batch = Batch::kUnary}},
    {"round", {.flags = kLinear, .batch = Batch::kUnary}},
    {"leaky_relu", {.keeps = kFirst, .batch = Batch::kUnary}},
    {"sgn", {.keeps = kFirst | kResult, .batch = Batch::kUnary}},
    {"hardshrink take threshold var", {.keeps = kFirst}},
    {"_safe_softmax det linalg_det ldexp linalg_slogdet linalg_solve_triangular logcumsumexp "
     "special_erfcx special_i0e special_i1 special_i1e special_log_ndtr special_ndtri std_mean vector_norm",
     {.keeps = kResult}},
    {"__iter__", {.flags = kOneOfSeveral}},
    {"unsafe_chunk unsafe_split unsafe_split_with_sizes", {.flags = kOneOfSeveral | kOwnVersions}},
    {"chunk split split_with_sizes", {.flags = kOneOfSeveral, .batch = Batch::kSplit}},
    {"unsqueeze", {.batch = Batch::kNewDim}},
    {"all any", {.batch = Batch::kReduce}},
    {"_addmm_activation", {.cpu = CastRule::kLower}},
    {"adaptive_avg_pool2d avg_pool2d max_pool2d", {.flags = kLayoutFollows | kKeepsNoResult}},
    {"swapaxes swapdims transpose", {.batch = Batch::kTwoDims}},
    {"addmv addr convolution", {.cuda = CastRule::kLower}},
    {"mv", {.cuda = CastRule::kLower, .batch = Batch::kMatrixVector}},
    {"load save", {.ends = BreakId::kOutput}},
    {"initial_seed", {.ends = BreakId::kRandom}},
    {"_log_softmax _softmax", {.flags = kKeepsNoOperand}},
    {"adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d ctc_loss fake_quantize_per_tensor_affine fft_fft fft_fft2 "
     "fft_fftn fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_rfft fft_rfft2 fft_rfftn geqrf grid_sampler_2d "
     "grid_sampler_3d linalg_eig linalg_eigvals max_pool3d nanquantile polar quantile reflection_pad1d "
     "reflection_pad2d replication_pad1d replication_pad2d replication_pad3d view_as_complex",
     {.cpu = CastRule::kFloat32}},
    {"linalg_svd svd", {.keeps = kResults, .cpu = CastRule::kFloat32}},
    {"triangular_solve", {.keeps = kResult, .cpu = CastRule::kFloat32}},
    {"index_reduce", {.keeps = kResult}},
    {"linalg_eigh linalg_qr qr", {.keeps = kResult | kSecondResult, .cpu = CastRule::kFloat32}},
    {"cholesky cholesky_inverse cholesky_solve inverse linalg_cholesky linalg_cholesky_ex linalg_eigvalsh "
     "linalg_householder_product linalg_inv linalg_inv_ex linalg_svdvals orgqr ormqr",
     {.keeps = kResult, .cpu = CastRule::kFloat32}},
    {"fft_hfft fft_irfft fft_irfft2 fft_irfftn max_unpool2d max_unpool3d trace",
     {.flags = kLinear, .cpu = CastRule::kFloat32}},
    {"lu_solve", {.flags = kTrustsIntegers, .keeps = kResult, .cpu = CastRule::kFloat32}},
    {"column_stack dstack hstack row_stack vstack", {.flags = kLinear, .cpu = CastRule::kPromote}},
    {"concatenate", {.flags = kLinear, .cpu = CastRule::kPromote, .batch = Batch::kJoined}},
    {"index_copy", {.flags = kLinear, .keeps = kSecond, .cpu = CastRule::kPromote}},
    {"arange bartlett_window blackman_window empty_permuted empty_strided eye fftfreq hamming_window hann_window "
     "kaiser_window linspace logspace range rfftfreq scalar_tensor tril_indices triu_indices",
     {.flags = kOnDefaultDevice}},
    {"alias_copy atleast_1d atleast_2d atleast_3d block_diag broadcast_to cartesian_prod channel_shuffle col2im "
     "constant_pad_nd diag diag_embed diagflat diagonal_copy diagonal_scatter diff dsplit expand_copy fft_fftshift "
     "fft_hfft2 fft_hfftn fft_ifftshift fill fliplr flipud hsplit im2col index_fill index_select linalg_diagonal "
     "masked_scatter max_unpool1d meshgrid narrow_copy permute_copy pixel_shuffle pixel_unshuffle rot90 "
     "select_copy select_scatter slice_copy slice_scatter split_copy split_with_sizes_copy squeeze_copy "
     "sum_to_size t_copy transpose_copy unbind_copy unfold unfold_copy unsqueeze_copy view_copy vsplit",
     {.flags = kLinear}},
    {"fill_", {.flags = kLinear, .batch = Batch::kFill}},
    {"put", {.flags = kLinear, .keeps = kSecond}},
    {"index_add", {.flags = kLinear | kLikeFirst, .keeps = kSecond}},
    {"scatter", {.flags = kLinear | kLikeFirst}},
    {"scatter_reduce", {.flags = kLikeFirst, .keeps = kResult}},
    {"_upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d "
     "_upsample_nearest_exact3d upsample_bicubic2d upsample_linear1d upsample_nearest1d upsample_nearest3d "
     "upsample_trilinear3d",
     {.flags = kLinear, .cuda = CastRule::kFloat32}},
    {"and bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign floor_divide floordiv "
     "fmax "
     "fmin fmod heaviside logaddexp logical_and logical_or logical_xor lshift maximum minimum mod or remainder rshift "
     "xlogy xor",
     {.batch = Batch::kPointwise}},
    {"lerp", {.flags = kTakesHeldNumber, .batch = Batch::kPointwise}},
    {"eq ge greater greater_equal gt le less less_equal lt ne not_equal",
     {.flags = kTakesFloatSymbols | kTakesHeldNumber, .batch = Batch::kPointwise}},
    {"clamp clamp_max clamp_min clip", {.flags = kTakesFloatSymbols, .batch = Batch::kPointwiseOfOne}},
    {"arccos arcsin cosine_similarity frobenius_norm interpolate nuclear_norm renorm rms_norm "
     "rpow softmin",
     {.cuda = CastRule::kFloat32}},
    {"native_layer_norm",
     {.flags = kFixedTangents, .keeps = kFirst | kSecondResult | kThirdResult, .cuda = CastRule::kFloat32}},
    {"cross linalg_cross vdot", {.cuda = CastRule::kPromote}},
    {"dot", {.cuda = CastRule::kPromote, .batch = Batch::kVectors}},
    {"pairwise_distance", {.keeps = kResult, .cuda = CastRule::kRefused}},
    {"reshape view", {.flags = kKeepsNoOperand | kKeepsNoResult | kSizesInArguments, .batch = Batch::kReshape}},
    {"tile", {.flags = kKeepsNoOperand | kKeepsNoResult | kSizesInArguments}},
    {"__complex__", {.ends = BreakId::kTensorItem}},
    {"detach_", {.ends = BreakId::kAutogradCall}},
    {"dropout", {.flags = kDraws | kKeepsNoResult, .batch = Batch::kDrawnInRows}},
    {"_unique2 argwhere masked_select nonzero unique_consecutive", {.flags = kOutside | kSizedByData}},
    {"randint randperm", {.flags = kDraws | kOnDefaultDevice}},
    {"rrelu_with_noise", {.flags = kDraws | kWritesInSilence}},
    {"full_like", {.flags = kKeepsNoOperand | kKeepsNoResult | kTakesFloatSymbols}},
    {"_stack contiguous copy empty_like iadd isub ones_ pad radd ravel roll sort topk tril triu type type_as "
     "zeros_",
     {.flags = kKeepsNoOperand | kKeepsNoResult}},
    {"copy_", {.flags = kKeepsNoOperand | kKeepsNoResult, .batch = Batch::kCopy}},
    {"embedding", {.flags = kKeepsNoOperand | kKeepsNoResult | kMayRenormalise, .batch = Batch::kLeadingSecond}},
    {"embedding_bag", {.flags = kMayRenormalise | kTrustsLastOffset}},
    {"torch.max_pool1d", {.flags = kDenseWhenBare}},
    {"framejit._gradients.gather", {.flags = kKeepsNoOperand | kKeepsNoResult | kDerivedAgain, .keeps = kFirst}},
    {"framejit._gradients.take", {.flags = kDerivedAgain, .keeps = kFirst}},
    {"torch.ops.aten.convolution_backward torch.ops.aten.embedding_dense_backward", {.flags = kDerivedAgain}},
    {"gather", {.flags = kKeepsNoOperand | kKeepsNoResult, .keeps = kFirst}},
    {"__setitem__", {.flags = kKeepsNoResult | kTakesFloatSymbols | kTakesSequences, .batch = Batch::kStore}},
    {"batch_norm instance_norm", {.flags = kKeepsNoResult | kWritesInSilence | kFixedTangents}},
    {"get_rng_state manual_seed manual_seed_all seed set_rng_state", {.flags = kOutside, .ends = BreakId::kRandom}},
    {"unbind", {.flags = kOneOfSeveral, .batch = Batch::kDim}},
    {"exp2", {.keeps = kResult, .batch = Batch::kUnary}},
    {"amax amin", {.keeps = kFirst | kResult, .batch = Batch::kReduce}},
    {"resize_ set_ share_memory_", {.flags = kOutside, .ends = BreakId::kSideEffect}},
    {"allclose array_equal equal is_nonzero", {.flags = kOutside, .ends = BreakId::kTensorBool}},
    {"__index__ data_ptr item tolist", {.flags = kOutside, .ends = BreakId::kTensorItem}},
    {"_convolution addbmm conv_tbc conv_transpose3d linalg_vecdot scaled_dot_product_attention",
     {.cpu = CastRule::kLower, .cuda = CastRule::kLower}},
    {"einsum", {.cpu = CastRule::kLower, .cuda = CastRule::kLower, .batch = Batch::kEinsum}},
    {"prelu", {.keeps = kFirst | kSecond, .cpu = CastRule::kLower, .cuda = CastRule::kLower}},
    {"backward grad register_hook register_post_accumulate_grad_hook requires_grad_ retain_grad",
     {.flags = kOutside, .ends = BreakId::kAutogradCall}},
    {"acos asin cosh erfinv log log10 log1p log2 sinh softplus special_erfinv special_log1p",
     {.cuda = CastRule::kFloat32, .batch = Batch::kUnary}},
    {"hypot", {.keeps = kResult, .batch = Batch::kPointwise}},
    {"dist float_power linalg_matrix_norm linalg_vector_norm pdist", {.keeps = kResult, .cuda = CastRule::kFloat32}},
    {"linalg_norm norm", {.keeps = kFirst | kResult, .cuda = CastRule::kFloat32}},
    {"chain_matmul linalg_multi_dot tensordot", {.cpu = CastRule::kRefused, .cuda = CastRule::kLower}},
    {"where", {.flags = kKeepsNoResult | kTakesFloatSymbols, .batch = Batch::kPointwise}},
    {"rtruediv", {.flags = kKeepsNoResult, .cuda = CastRule::kFloat32}},
    {"layer_norm",
     {.flags = kKeepsNoResult | kFixedTangents,
      .keeps = kFirst | kSecond | kThird,
      .cuda = CastRule::kFloat32,
      .batch = Batch::kLeading}},
    {"group_norm", {.flags = kKeepsNoResult, .keeps = kFirst, .cuda = CastRule::kFloat32}},
    {"upsample_bilinear2d upsample_nearest2d", {.flags = kLinear | kLayoutFollows, .cuda = CastRule::kFloat32}},
    {"expand", {.flags = kSizesInArguments, .batch = Batch::kExpand}},
    {"binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy cross_entropy_loss hinge_embedding_loss "
     "huber_loss kl_div l1_loss margin_ranking_loss multi_margin_loss multilabel_margin_loss nll_loss2d "
     "poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss",
     {.cpu = CastRule::kFloat32, .cuda = CastRule::kFloat32}},
    {"mse_loss", {.cpu = CastRule::kFloat32, .cuda = CastRule::kFloat32, .batch = Batch::kSquaredError}},
    {"cdist", {.keeps = kResult, .cpu = CastRule::kFloat32, .cuda = CastRule::kFloat32}},
    {"nll_loss nll_loss_nd", {.keeps = kFirst, .cpu = CastRule::kFloat32, .cuda = CastRule::kFloat32}},
    {"grid_sampler", {.cpu = CastRule::kFloat32, .cuda = CastRule::kPromote}},
    {"binary_cross_entropy", {.cpu = CastRule::kFloat32, .cuda = CastRule::kRefused}},
    {"_native_multi_head_attention _scaled_dot_product_flash_attention bilinear corrcoef cov fractional_max_pool2d "
     "fractional_max_pool3d gru_cell inner istft linalg_cond linalg_lstsq linalg_matrix_exp "
     "linalg_matrix_power linalg_matrix_rank lstm_cell matrix_exp matrix_power mkldnn_rnn_layer "
     "multi_head_attention_forward rnn_relu_cell rnn_tanh_cell stft",
     {.cpu = CastRule::kRefused, .cuda = CastRule::kRefused}},
    {"_indices _values col_indices indices row_indices values", {.flags = kSizedByData}},
    {"gru lstm rnn_relu rnn_tanh", {.flags = kSizedByData, .cpu = CastRule::kRefused, .cuda = CastRule::kRefused}},
    {"linalg_pinv linalg_solve linalg_solve_ex linalg_tensorinv linalg_tensorsolve pinverse",
     {.keeps = kResult, .cpu = CastRule::kRefused, .cuda = CastRule::kRefused}},
    {"pow", {.cuda = CastRule::kFloat32, .batch = Batch::kPointwise}},
    {"arctan2 atan2", {.cuda = CastRule::kPromote, .batch = Batch::kPointwise}},
    {"addcdiv addcmul",
     {.flags = kTakesFactor, .keeps = kSecond | kThird, .cuda = CastRule::kPromote, .batch = Batch::kPointwise}},
    {"rand randn", {.flags = kDraws | kOnDefaultDevice | kSizesInArguments, .batch = Batch::kDrawn}},
    {"divide multiply true_divide", {.flags = kTakesFloatSymbols | kTakesHeldNumber, .batch = Batch::kPointwise}},
    {"subtract", {.flags = kTakesFloatSymbols | kTakesHeldNumber | kTakesFactor, .batch = Batch::kPointwise}},
    {"repeat_interleave", {.flags = kKeepsNoOperand | kKeepsNoResult | kSizedByData}},
    {"as_tensor asarray tensor", {.flags = kOnDefaultDevice | kReadsDType | kTakesSequences}},
    {"full", {.flags = kKeepsNoOperand | kKeepsNoResult | kTakesFloatSymbols | kOnDefaultDevice}},
    {"repeat", {.flags = kKeepsNoOperand | kKeepsNoResult | kSizesInArguments}},
    {"flip", {.flags = kKeepsNoOperand | kKeepsNoResult, .batch = Batch::kDims}},
    {"new_full", {.flags = kKeepsNoOperand | kKeepsNoResult | kTakesFloatSymbols, .batch = Batch::kNew}},
    {"relu sigmoid sqrt tanh", {.flags = kKeepsNoOperand, .keeps = kResult, .batch = Batch::kUnary}},
    {"bfloat16 ceil clone double float floor frac half neg ones_like sign to trunc zeros_like",
     {.flags = kKeepsNoOperand | kKeepsNoResult, .batch = Batch::kUnary}},
    {"mean", {.flags = kKeepsNoOperand | kKeepsNoResult, .batch = Batch::kReduce}},
    {"cat concat", {.flags = kKeepsNoOperand | kKeepsNoResult, .cpu = CastRule::kPromote, .batch = Batch::kJoined}},
    {"stack", {.flags = kKeepsNoOperand | kKeepsNoResult, .cpu = CastRule::kPromote, .batch = Batch::kStacked}},
    {"masked_fill",
     {.flags = kKeepsNoOperand | kKeepsNoResult | kTakesFloatSymbols | kTakesFactor, .batch = Batch::kPointwiseOfTwo}},
    {"index_put", {.flags = kLinear, .cuda = CastRule::kPromote}},
    {"scatter_add", {.flags = kLinear | kLikeFirst, .cuda = CastRule::kPromote}},
    {"__bool__ __nonzero__", {.flags = kOutside, .ends = BreakId::kTensorBool, .batch = Batch::kUnary}},
    {"__int__", {.flags = kOutside, .ends = BreakId::kTensorItem, .batch = Batch::kUnary}},
    {"cumprod logsumexp special_logsumexp", {.keeps = kResult, .cuda = CastRule::kFloat32, .batch = Batch::kDim}},
    {"addmm baddbmm conv_transpose1d conv_transpose2d",
     {.flags = kKeepsNoResult, .cpu = CastRule::kLower, .cuda = CastRule::kLower}},
    {"conv1d conv2d conv3d",
     {.flags = kKeepsNoResult, .cpu = CastRule::kLower, .cuda = CastRule::kLower, .batch = Batch::kConvolution}},
    {"linear", {.flags = kKeepsNoResult, .cpu = CastRule::kLower, .cuda = CastRule::kLower, .batch = Batch::kLinear}},
    {"matmul", {.flags = kKeepsNoResult, .cpu = CastRule::kLower, .cuda = CastRule::kLower, .batch = Batch::kProduct}},
    {"mm", {.flags = kKeepsNoResult, .cpu = CastRule::kLower, .cuda = CastRule::kLower, .batch = Batch::kMatrices}},
    {"bmm",
     {.flags = kKeepsNoResult, .cpu = CastRule::kLower, .cuda = CastRule::kLower, .batch = Batch::kBatchesOfMatrices}},
    {"expm1 special_expm1 tan", {.keeps = kResult, .cuda = CastRule::kFloat32, .batch = Batch::kUnary}},
    {"empty ones zeros", {.flags = kKeepsNoOperand | kKeepsNoResult | kOnDefaultDevice | kSizesInArguments}},
    {"new_empty new_ones new_zeros",
     {.flags = kKeepsNoOperand | kKeepsNoResult | kSizesInArguments, .batch = Batch::kNew}},
    {"__getitem__", {.flags = kKeepsNoOperand | kKeepsNoResult | kTakesSequences, .batch = Batch::kIndex}},
    {"div mul truediv",
     {.flags = kBatchesInPlace | kKeepsNoResult | kTakesFloatSymbols | kTakesHeldNumber, .batch = Batch::kPointwise}},
    {"rsub",
     {.flags = kKeepsNoOperand | kKeepsNoResult | kTakesFloatSymbols | kTakesHeldNumber, .batch = Batch::kPointwise}},
    {"log_softmax softmax special_log_softmax special_softmax",
     {.flags = kKeepsNoOperand, .keeps = kResult, .cuda = CastRule::kFloat32, .batch = Batch::kDim}},
    {"cumsum", {.flags = kKeepsNoOperand | kKeepsNoResult, .cuda = CastRule::kFloat32, .batch = Batch::kDim}},
    {"exp reciprocal rsqrt",
     {.flags = kKeepsNoOperand, .keeps = kResult, .cuda = CastRule::kFloat32, .batch = Batch::kUnary}},
    {"sum", {.flags = kKeepsNoOperand | kKeepsNoResult, .cuda = CastRule::kFloat32, .batch = Batch::kReduce}},
    {"std", {.keeps = kFirst | kResult}},
    {"_lu_with_info aminmax linalg_lu_factor linalg_lu_factor_ex", {.keeps = kResult | kSecondResult}},
    {"linalg_lu", {.keeps = kResults}},
    {"native_group_norm", {.keeps = kFirst | kSecondResult | kThirdResult}},
    {"prod", {.keeps = kFirst | kResult, .cpu = CastRule::kFloat32, .cuda = CastRule::kFloat32, .batch = Batch::kDim}},
    {"__rtruediv__",
     {.flags = kKeepsNoResult | kTakesFloatSymbols | kTakesHeldNumber,
      .cuda = CastRule::kFloat32,
      .batch = Batch::kPointwise}},
    {"__float__",
     {.flags = kKeepsNoOperand | kKeepsNoResult | kOutside, .ends = BreakId::kTensorItem, .batch = Batch::kUnary}},
    {"add sub",
     {.flags =
          kBatchesInPlace | kKeepsNoOperand | kKeepsNoResult | kTakesFloatSymbols | kTakesHeldNumber | kTakesFactor,
      .batch = Batch::kPointwise}},
    {"torch.compiler.is_compiling torch.compiler.is_dynamo_compiling torch._dynamo.is_compiling "
     "torch._dynamo.external_utils.is_compiling torch._utils.is_compiling",
     {.answer = Answer::kYes}},
    {"torch.compiler.is_exporting torch.jit.is_tracing torch.jit.is_scripting torch._jit_internal.is_scripting "
     "torch._C._is_tracing torch._C._jit_is_tracing torch.overrides.has_torch_function "
     "torch.overrides.has_torch_function_unary torch.overrides.has_torch_function_variadic "
     "torch._C._has_torch_function torch._C._has_torch_function_unary torch._C._has_torch_function_variadic "
     "torch.onnx.is_in_onnx_export torch._C._are_functorch_transforms_active "
     "torch.cuda.is_current_stream_capturing torch.cuda.graphs.is_current_stream_capturing "
     "torch._C._cuda_isCurrentStreamCapturing torch.xpu.is_current_stream_capturing "
     "torch.xpu.graphs.is_current_stream_capturing",
     {.answer = Answer::kNo}},
    {"torch._C._get_tracing_state torch._C._log_api_usage_once", {.answer = Answer::kNothing}},
    {"framejit.vjp(*", {.flags = kDerivedAgain}},
    {"*batch_norm*", {.flags = kWritesInSilence | kFixedTangents}},
};

// The rows of NumPy, SciPy and CuPy. Of CuPy, what data sizes and what writes is not modelled.
constexpr Row kNumpy[] = {
    {"__contains__ __deepcopy__ __dlpack__ __reduce_ex__ __setstate__ array_equiv as_strided byteswap compress data "
     "data.__get__ dump dumps errstate extract flags flags.__get__ flatnonzero frompyfunc intersect1d nditer "
     "nonzero "
     "put real_if_close resize setdiff1d seterr setfield setflags setxor1d tobytes tofile trim_zeros union1d "
     "unique_all "
     "unique_counts unique_inverse unique_values vectorize",
     {.flags = kOutside}},
    {"bincount numpy.ndarray.__getitem__", {.flags = kSizedByData}},
    {"__setitem__", {.flags = kWritesFirst | kTakesFloatSymbols | kTakesSequences}},
    {"__array__ accumulate all amax amin angle any append argmax argmin argpartition argsort around asanyarray "
     "ascontiguousarray "
     "asfortranarray astype average broadcast_to cholesky choose column_stack concat concatenate cond conj "
     "conjugate convolve copy corrcoef correlate count_nonzero cov cross cumprod cumsum cumulative_prod cumulative_sum "
     "delete det diag diagflat diff digitize dot dstack eigh eigvalsh einsum fft fft2 fftn fftshift fix full_like "
     "gradient heaviside hfft histogram hstack i0 ifft ifft2 ifftn ifftshift ihfft inner insert interp inv irfft "
     "irfft2 irfftn isclose isin kron lexsort log_softmax logsumexp matmul matrix_power matrix_rank max mean median "
     "meshgrid min multi_dot nan_to_num nanargmax nanargmin nancumprod nancumsum nanprod nansum norm numpy.partition "
     "ones_like outer pad percentile piecewise pinv polyval prod ptp qr quantile ravel_multi_index "
     "reduce reduceat repeat rfft rfft2 rfftn roll rot90 round searchsorted select sinc slogdet softmax solve sort "
     "stack std sum svd take take_along_axis tensordot tile trace trapezoid tril triu unravel_index unwrap vander var "
     "vdot view vstack zeros_like",
     {.flags = kSizedByShapes}},
    // Of SciPy: functions that compute, and whose warnings, if they give any, hang on sizes alone.
    {"scipy.fft.dct scipy.fft.dctn scipy.fft.dst scipy.fft.dstn scipy.fft.hfft2 scipy.fft.hfftn scipy.fft.idct "
     "scipy.fft.idctn scipy.fft.idst scipy.fft.idstn scipy.fft.ihfft2 scipy.fft.ihfftn "
     "scipy.integrate.cumulative_simpson scipy.integrate.cumulative_trapezoid scipy.integrate.romb "
     "scipy.integrate.simpson scipy.linalg.block_diag scipy.linalg.circulant scipy.linalg.companion "
     "scipy.linalg.expm scipy.linalg.hankel scipy.linalg.hessenberg scipy.linalg.khatri_rao scipy.linalg.lu "
     "scipy.linalg.polar scipy.linalg.rq scipy.linalg.svdvals scipy.linalg.toeplitz scipy.ndimage.affine_transform "
     "scipy.ndimage.binary_closing scipy.ndimage.binary_dilation scipy.ndimage.binary_erosion "
     "scipy.ndimage.binary_opening scipy.ndimage.convolve1d scipy.ndimage.correlate1d "
     "scipy.ndimage.distance_transform_edt scipy.ndimage.gaussian_filter scipy.ndimage.gaussian_filter1d "
     "scipy.ndimage.gaussian_gradient_magnitude scipy.ndimage.gaussian_laplace scipy.ndimage.grey_closing "
     "scipy.ndimage.grey_dilation scipy.ndimage.grey_erosion scipy.ndimage.grey_opening scipy.ndimage.laplace "
     "scipy.ndimage.map_coordinates scipy.ndimage.maximum_filter scipy.ndimage.median_filter "
     "scipy.ndimage.minimum_filter scipy.ndimage.percentile_filter scipy.ndimage.prewitt scipy.ndimage.rank_filter "
     "scipy.ndimage.rotate scipy.ndimage.shift scipy.ndimage.sobel scipy.ndimage.spline_filter "
     "scipy.ndimage.uniform_filter scipy.ndimage.uniform_filter1d scipy.ndimage.zoom scipy.signal.coherence "
     "scipy.signal.convolve2d scipy.signal.correlate2d scipy.signal.csd scipy.signal.decimate scipy.signal.detrend "
     "scipy.signal.fftconvolve scipy.signal.filtfilt scipy.signal.freqz scipy.signal.hilbert scipy.signal.lfilter "
     "scipy.signal.medfilt scipy.signal.oaconvolve scipy.signal.periodogram "
     "scipy.signal.resample scipy.signal.resample_poly scipy.signal.savgol_filter scipy.signal.sosfilt "
     "scipy.signal.sosfilt_zi scipy.signal.sosfiltfilt scipy.signal.sosfreqz scipy.signal.spectrogram "
     "scipy.signal.upfirdn scipy.signal.welch scipy.signal.wiener scipy.spatial.distance.cdist "
     "scipy.spatial.distance.pdist",
     {.flags = kSizedByShapes}},
    {"scipy.linalg.hadamard scipy.linalg.hilbert scipy.linalg.pascal scipy.signal.bessel scipy.signal.butter "
     "scipy.signal.cheby1 scipy.signal.cheby2 scipy.signal.ellip scipy.signal.firwin scipy.signal.get_window "
     "scipy.signal.iirnotch scipy.signal.iirpeak scipy.signal.savgol_coeffs scipy.signal.windows.hann "
     "scipy.signal.windows.gaussian scipy.signal.windows.tukey",
     {.flags = kSizedByNumbers}},
    {"scipy.linalg.inv scipy.linalg.solve", {}},  // They warn of data.
    {"load save", {.ends = BreakId::kOutput}},
    {"arange bartlett blackman empty eye fftfreq full hamming hanning identity indices kaiser ones rfftfreq tri zeros",
     {.flags = kSizedByNumbers}},
    {"geomspace linspace logspace", {.flags = kSizedByShapes | kSizedByNumbers}},
    {"clip", {.flags = kSizedByShapes | kTakesFloatSymbols}},
    {"eq ge greater greater_equal gt le less less_equal lt maximum minimum ne not_equal",
     {.flags = kTakesFloatSymbols}},
    {"__rtruediv__ add div divide mul multiply sub subtract true_divide truediv",
     {.flags = kTakesFloatSymbols | kTakesHeldNumber}},
    {"__complex__", {.ends = BreakId::kTensorItem}},
    {"argwhere numpy.compress numpy.ndarray.compress numpy.ndarray.nonzero numpy.nonzero unique",
     {.flags = kOutside | kSizedByData}},
    {"copyto fill_diagonal numpy.ndarray.fill numpy.ndarray.put numpy.put place put_along_axis putmask",
     {.flags = kOutside | kWritesFirst}},
    {"numpy.ndarray.repeat numpy.repeat", {.flags = kSizedByData | kSizedByShapes}},
    {"where", {.flags = kSizedByData | kSizedByShapes | kTakesFloatSymbols}},
    {"array asarray", {.flags = kSizedByShapes | kTakesSequences}},
    {"seed", {.flags = kOutside, .ends = BreakId::kRandom}},
    {"__bool__", {.flags = kOutside, .ends = BreakId::kTensorBool}},
    {"__float__ __index__ __int__ item tolist", {.flags = kOutside, .ends = BreakId::kTensorItem}},
    {"numpy.ndarray.sort partition", {.flags = kOutside | kSizedByShapes | kWritesFirst}},
    {"allclose array_equal", {.flags = kOutside | kSizedByShapes, .ends = BreakId::kTensorBool}},
    {"numpy.*.at", {.flags = kOutside | kWritesFirst}},
    {"*.at numpy.random.*", {.flags = kOutside}},
};

// Finds the row of a name. Patterns are tried in the order in which they stand in their table.
class Table {
 public:
  explicit Table(std::span<const Row> rows) {
    for (const Row& r : rows)
      for (std::string_view rest = r.names; !rest.empty();) {
        const size_t space = rest.find(' ');
        const std::string_view name = rest.substr(0, space);
        if (name.find('*') != name.npos)
          patterns_.emplace_back(name, &r.effects);
        else if (!names_.emplace(name, &r.effects).second)
          throw std::logic_error("two rows of effects for " + std::string(name));
        rest = space == rest.npos ? std::string_view() : rest.substr(space + 1);
      }
  }
  const Effects* Find(std::string_view name) const {
    auto at = names_.find(name);
    return at == names_.end() ? nullptr : at->second;
  }
  const Effects* Match(std::string_view name) const {
    for (const auto& [pattern, effects] : patterns_)
      if (Matches(pattern, name)) return effects;
    return nullptr;
  }

 private:
  static bool Matches(std::string_view pattern, std::string_view name) {
    const size_t star = pattern.find('*');
    if (star == pattern.npos) return pattern == name;
    if (!name.starts_with(pattern.substr(0, star))) return false;
    pattern.remove_prefix(star + 1);
    for (size_t from = star; from <= name.size(); ++from)
      if (Matches(pattern, name.substr(from))) return true;
    return false;
  }
  std::unordered_map<std::string_view, const Effects*> names_;
  std::vector<std::pair<std::string_view, const Effects*>> patterns_;
};

constexpr std::string_view kAugmented[] = {"add", "sub", "mul", "truediv", "div",    "floordiv", "mod",
                                           "pow", "and", "or",  "xor",     "lshift", "rshift",   "matmul"};
constexpr std::string_view kOperators[] = {"neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge", "divmod"};

// Splits a name: add_, __add__, __iadd__ and __radd__ all have the base "add", and the flags say which of them it is.
struct Form {
  std::string_view base;
  uint32_t flags = 0;
};
Form FormOf(std::string_view last) {
  const auto among = [](std::span<const std::string_view> all, std::string_view name) {
    return std::find(all.begin(), all.end(), name) != all.end();
  };
  if (last.size() > 4 && last.starts_with("__") && last.ends_with("__")) {
    const std::string_view inner = last.substr(2, last.size() - 4), rest = inner.substr(1);
    if (inner[0] == 'i' && among(kAugmented, rest)) return {rest, kInPlace};
    if (inner[0] == 'r' && (among(kAugmented, rest) || rest == "divmod")) return {rest, kReflected};
    return {among(kAugmented, inner) || among(kOperators, inner) ? inner : last};
  }
  if (last.size() > 1 && last.ends_with('_') && !last.ends_with("__"))
    return {last.substr(0, last.size() - 1), kInPlace};
  return {last};
}

bool OfAnotherLibrary(std::string_view name) {
  if (!name.starts_with("torch.ops.")) return false;
  for (std::string_view known :
       {"torch.ops.aten.", "torch.ops.prims.", "torch.ops.quantized.", "torch.ops.torchvision."})
    if (name.starts_with(known)) return false;
  return true;
}

bool IsNumpys(std::string_view name) {
  for (std::string_view space : {"numpy.", "scipy.", "cupy.", "framejit._arrays."})
    if (name.starts_with(space)) return true;
  return false;
}

// Where a function lies says something of it, too.
constexpr std::string_view kBatched[] = {"torch",         "torch.Tensor", "torch.nn.functional",
                                         "torch.special", "torch._C._nn", "torch._C._VariableFunctionsClass"};
constexpr std::string_view kPlaced[] = {"torch", "torch.fft", "torch._C._VariableFunctionsClass"};

Effects EffectsOf(const std::string& name, std::string_view last, bool numpy, bool cupy) {
  static const auto* torch_table = new Table(kTorch);
  static const auto* numpy_table = new Table(kNumpy);
  const Table& table = numpy ? *numpy_table : *torch_table;
  const bool accessor = name.ends_with(".__get__") || name.ends_with(".__set__");
  const std::string_view member = accessor ? std::string_view(name).substr(name.rfind('.', name.size() - 9) + 1) : last;
  const std::string full = cupy ? "numpy" + name.substr(4) : name;
  const Form form = FormOf(last);
  const Effects* found = table.Find(full);
  for (const char* space : {"linalg", "fft", "special"})
    if (!found && name.find(std::string(".") + space + ".") != name.npos)
      found = table.Find(std::string(space) + "_" + std::string(member));
  if (!found) found = table.Find(member);
  const bool derived = !found && !accessor && form.base != last && (found = table.Find(form.base));
  if (!found) found = table.Match(full);
  Effects e = found ? *found : Effects();
  if (derived && form.flags & kInPlace) {
    e.cpu = e.cuda = CastRule::kNone;
    if (!(e.flags & kBatchesInPlace)) e.batch = Batch::kNone;
  }
  if (derived && form.flags & kReflected && e.batch != Batch::kPointwise) e.batch = Batch::kNone;
  if (!accessor && (!numpy || last.ends_with("__"))) e.flags |= form.flags;  // numpy.bool_ is no in-place bool
  if (cupy) e.flags &= ~(kSizedByData | kWritesFirst);
  if (OfAnotherLibrary(name)) e.flags |= kForeign;
  const std::string_view space = std::string_view(name).substr(0, name.size() - std::min(name.size(), last.size() + 1));
  const auto among = [&](const auto& spaces) { return std::ranges::find(spaces, space) != std::end(spaces); };
  if (!among(kBatched)) e.batch = Batch::kNone;
  if (!among(kPlaced)) e.flags &= ~kOnDefaultDevice;
  return e;
}

constexpr std::pair<EffectFlags, const char*> kFlags[] = {
    {kOutside, "outside"},
    {kReadsDType, "reads_dtype"},
    {kTakesSequences, "takes_sequences"},
    {kTakesFloatSymbols, "takes_float_symbols"},
    {kOnDefaultDevice, "on_default_device"},
    {kSizesInArguments, "sizes_in_arguments"},
    {kSizedByData, "sized_by_data"},
    {kSizedByShapes, "sized_by_shapes"},
    {kSizedByNumbers, "sized_by_numbers"},
    {kLayoutFollows, "layout_follows"},
    {kLikeFirst, "like_first"},
    {kWritesFirst, "writes_first"},
    {kWritesInSilence, "writes_in_silence"},
    {kDraws, "draws"},
    {kForeign, "foreign"},
    {kKeepsNoOperand, "keeps_no_operand"},
    {kKeepsNoResult, "keeps_no_result"},
    {kOneOfSeveral, "one_of_several"},
    {kInPlace, "in_place"},
    {kReflected, "reflected"},
    {kBatchesInPlace, "batches_in_place"},
    {kTrustsIntegers, "trusts_integers"},
    {kShapesAlone, "shapes_alone"},
    {kTypeOfTensors, "type_of_tensors"},
    {kTakesHeldNumber, "takes_held_number"},
    {kTakesFactor, "takes_factor"},
    {kTrustsLastOffset, "trusts_last_offset"},
    {kMayRenormalise, "may_renormalise"},
    {kDenseWhenBare, "dense_when_bare"},
    {kDerivedAgain, "derived_again"},
    {kOwnVersions, "own_versions"},
    {kFixedTangents, "fixed_tangents"},
};

// Has each flag a bit that no other one has?
constexpr bool Apart() {
  uint32_t seen = 0;
  for (const auto& [flag, name] : kFlags) {
    if (seen & flag) return false;
    seen |= flag;
  }
  return true;
}
static_assert(Apart());

}  // namespace

std::string Effects::str() const {
  static constexpr const char* kKept[] = {"first",         "second",       "third",   "result",
                                          "second_result", "third_result", "if_alone"};
  static constexpr const char* kCasts[] = {"", "lower", "float32", "promote", "refused"};
#define FRAMEJIT_NAME(rule, text) text,
  static constexpr const char* kBatches[] = {FRAMEJIT_BATCH_RULES(FRAMEJIT_NAME)};
#undef FRAMEJIT_NAME
  static constexpr const char* kAnswers[] = {"", "yes", "no", "nothing"};
  std::string s;
  const auto say = [&](const std::string& text) { s += (s.empty() ? "" : " ") + text; };
  for (const auto& [flag, name] : kFlags)
    if (flags & flag) say(name);
  for (size_t i = 0; i < std::size(kKept); ++i)
    if (keeps >> i & 1) say(std::string("keeps=") + kKept[i]);
  if (refused()) say(std::string("ends=") + diag::Info(ends).id);
  if (cpu != CastRule::kNone) say(std::string("cpu=") + kCasts[static_cast<int>(cpu)]);
  if (cuda != CastRule::kNone) say(std::string("cuda=") + kCasts[static_cast<int>(cuda)]);
  if (batch != Batch::kNone) say(std::string("batch=") + kBatches[static_cast<int>(batch)]);
  if (answer != Answer::kNone) say(std::string("answer=") + kAnswers[static_cast<int>(answer)]);
  return s;
}

struct Callee::Entry {
  std::string name;
  size_t dot;  // where the last dot of the name stands
  Framework framework;
  bool cupy;
  Effects effects;
  const Entry* next;
};

Callee::Callee(std::string_view name) {
  static NameTable<Entry, 4096> names;
  if (name.empty()) return;
  entry_ = names.Find(name, [name] {
    const size_t dot = name.rfind('.');
    const bool cupy = name.starts_with("cupy."), numpy = IsNumpys(name);
    auto* made = new Entry{std::string(name), dot, numpy ? Framework::kNumpy : Framework::kTorch, cupy, {}, nullptr};
    made->effects = EffectsOf(made->name, name.substr(dot + 1), numpy, cupy);
    return made;
  });
}

const std::string& Callee::name() const {
  static const auto* none = new std::string;
  return entry_ ? entry_->name : *none;
}

std::string_view Callee::last() const {
  return std::string_view(name()).substr(entry_ ? entry_->dot + 1 : 0);
}

std::string_view Callee::space() const {
  return entry_ && entry_->dot != std::string::npos ? std::string_view(entry_->name).substr(0, entry_->dot) : "";
}

const Effects& Callee::effects() const {
  static constexpr Effects none;
  return entry_ ? entry_->effects : none;
}

bool Callee::Has(uint32_t flags) const {
  return entry_ && entry_->effects.flags & flags;
}

Framework Callee::framework() const {
  return entry_ ? entry_->framework : Framework::kTorch;
}

bool Callee::of_cupy() const {
  return entry_ && entry_->cupy;
}

Callee FunctionalForm(Callee c) {
  if (!c.Has(kInPlace)) return c;
  static const Callee fills("torch.Tensor.fill_diagonal_"), filled("framejit._functions.fill_diagonal");
  if (c == fills) return filled;  // torch has no other form of it
  const bool dunder = c.last().ends_with("__");
  const std::string base(FormOf(c.last()).base);
  return Callee(std::string(c.space()) + "." + (dunder ? "__" + base + "__" : base));
}

}  // namespace framejit
