/* patience.cuh - a wait for what other blocks write has an end. Such a wait is right because all blocks of a
 * launch are resident; where they are not, for another process holds a part of the device, those that are
 * would wait for ever, and the host with them. So a wait that was in vain for so many turns, seconds, ends
 * the launch with an error, of which cuda_check says what it means. Turns, not time: what stops a kernel for
 * a while stops its turns too. */
#ifndef DFLASH_CUDA_PATIENCE_CUH
#define DFLASH_CUDA_PATIENCE_CUH

#ifndef PATIENCE
#define PATIENCE (1u << 23) /* turns, each a trip to memory */
#endif

/* turn() once a turn, behind its loads: three instructions while they are on their way. The last one is a
 * store to an address that a word cannot have: for a trap, the compiler makes a branch and guards whatever
 * comes behind the wait (docs/speed/verify.md). */
struct patience {
    unsigned left = PATIENCE + 1;
    __device__ __forceinline__ void turn()
    {
        asm volatile("{\n.reg .pred over;\nadd.u32 %0, %0, -1;\nsetp.eq.u32 over, %0, 1;\n@over "
                     "st.shared.u32 [%0], %0;\n}"
                     : "+r"(left)
                     :
                     : "memory");
    }
};

#endif
