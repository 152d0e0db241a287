# Functions that replace those of the package bash-completion, which is not installed or not loaded everywhere.

# Sets cur, prev, words and cword from the command line. Unlike COMP_WORDS, a word contains its "=" and ":".
__rootlessnode_words()
{
    local line=${COMP_LINE:0:COMP_POINT} rest word i
    words=() cword=-1
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        rest=${line#"${line%%[![:space:]]*}"}
        # At the end of the line, a word may be longer than the part before the cursor.
        [[ $rest == "$word"* ]] || word=$rest
        if ((i == 0)) || [[ $rest != "$line" ]]; then
            words[++cword]=$word
        else
            words[cword]+=$word
        fi
        line=${rest#"$word"}
    done
    cur=${words[cword]} prev=
    if ((cword > 0)); then
        prev=${words[cword - 1]}
    fi
}

# Adds the names of files to the completions, with -d only those of directories.
__rootlessnode_filedir()
{
    local kind=-f name
    if [[ ${1-} == -d ]]; then
        kind=-d
    fi
    compopt -o filenames 2>/dev/null
    while IFS= read -r name; do
        COMPREPLY+=("$name")
    done < <(compgen "$kind" -- "$cur")
}

