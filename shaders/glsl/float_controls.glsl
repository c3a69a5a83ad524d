// Asks the compiler to keep signed zeros, infinities and NaNs (execution mode
// SignedZeroInfNanPreserve, 32 bits): together with `precise` this gives IEEE arithmetic. The mode
// is stripped at load where the device lacks it.
#extension GL_EXT_spirv_intrinsics : require
spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4466], 4461, 32);
