// Cooperative matrices whose elements are set from registers, in the order of one instruction family.
//
// A lane is (group, turn) = (lane / 4, lane % 4). The elements of a 16x16 matrix A are, in pairs:
// columns 2 turn, 2 turn + 1 of row `group`, the same 8 columns on, then both again 8 rows down.
// Those of a 16x8 matrix B: rows 2 turn, 2 turn + 1 of column `group`, then the same 8 rows down;
// those of a 16x16 matrix B: these, then the same 8 columns on.
// The API does not promise this order: offer such a kernel only where a known answer was right.
#define WEIGHTS coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define TOKENS coopmat<float16_t, gl_ScopeSubgroup, 16, 8, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>
#define WIDE_TOKENS coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define WIDE_WEIGHTS coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define WIDE_SUMS coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>

#define SET_PAIR(matrix, pair, value) \
    {                                 \
        f16vec2 two = value;          \
        matrix[2 * (pair)] = two.x;   \
        matrix[2 * (pair) + 1] = two.y; \
    }
