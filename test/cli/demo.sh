# make demo: the pairs are in folders of their own, and neither run touches the other's files. The programs are stand-ins that
# write what they are told to; `make demo` itself is run by hand and shown in README.md.
mkdir bin
for t in convert quantize inspect tokenize prefill generate; do
    cat >bin/dflash-$t <<'T'
#!/bin/bash
while [ $# -gt 0 ]; do
    [ "$1" != -o ] || echo "$RUN" >"$2"
    shift
done
cat >/dev/null
echo "$RUN"
T
    chmod +x bin/dflash-$t
done
mkdir -p here/build
(cd here && ln -s "$SRC/data" data)
for pair in pair pair-hybrid; do
    # the command of the Makefile, whatever it is built with
    make -s -n -C "$SRC" demo BUILD="$PWD/here/build" BIN="$PWD/bin" PAIR=$pair CUDA=0 | grep demo.sh >"run-$pair"
    (cd here && RUN=$pair bash "../run-$pair") >/dev/null 2>&1 || echo "$pair: status $?"
done
cd here/build/demo
for f in */*; do echo "$f $(sort -u "$f")"; done
